"""The job that serves text, as a user runs it."""

import contextlib
import http.client
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from pipelines.command_line import main
from tests.serving.conftest import lm
from txl_tf.storage.untrusted_files import MAX_DEPTH

__all__ = ["lm"]

BODY = b'{"prompt": "Once", "max_tokens": 50}'


@pytest.fixture
def folder(lm, tmp_path):
    lm.save_to_preset(tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.parametrize(
    ("option", "value", "exit_code"),
    [("--port", "65536", 2), ("--host", "a b", 74), ("--rows", "0", 2), ("--step", "3", 2)],
)
def test_wrong_arguments_are_named(folder, capsys, option, value, exit_code):
    assert main(["serve", "--workdir", str(folder), option, value]) == exit_code
    assert f"{option} {value}" in capsys.readouterr().err


def test_a_folder_without_a_model_and_a_taken_port_are_named(folder, tmp_path, capsys):
    assert main(["serve", "--workdir", str(tmp_path)]) == 66
    assert "run, a checkpoint" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--workdir", str(folder), "--port", port]) == 74
    assert f"--port {port}" in capsys.readouterr().err


@pytest.fixture(scope="module")
def served(lm, tmp_path_factory):
    """Server in a process of its own; yields its address and process, and reads its log."""
    place = tmp_path_factory.mktemp("served")
    lm.save_to_preset(place / "mine")
    command = [sys.executable, "-m", "pipelines.command_line", "serve"]
    command += ["--workdir", str(place / "mine"), "--port", "0", "--log-requests"]
    with (place / "log").open("w+") as log:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            assert process.stdout.readline() == "mine: loading\n"
            name, url = process.stdout.readline().split()
            yield url, process
            process.kill()
        log.seek(0)
        text = log.read()
        assert name == "mine:" and "Traceback" not in text, text
        assert '"POST /v1/completions HTTP/1.1" 200' in text


@pytest.mark.slow
def test_the_first_stream_begins_at_once_and_a_session_continues(served):
    client = openai.OpenAI(base_url=f"{served[0]}/v1", api_key="any", max_retries=0)
    start, texts = time.monotonic(), []
    for prompt in ("Once", ""):
        session = {"session": "s"}
        stream = client.completions.create(
            model="mine", prompt=prompt, seed=3, max_tokens=20, stream=True, extra_body=session
        )
        texts.append("".join(event.choices[0].text for event in stream))
        assert time.monotonic() - start < 4
    whole = client.completions.create(model="mine", prompt="Once", seed=3, max_tokens=40)
    assert "".join(texts) == whole.choices[0].text
    request = ["curl", "-sS", f"{served[0]}/v1/completions", "-d", BODY.decode()]
    if shutil.which("curl"):
        found = subprocess.run(request, capture_output=True, check=True).stdout
        assert json.loads(found)["usage"]["completion_tokens"] == 50
    client.close()


@pytest.fixture
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_the_page_writes_by_keyboard_and_says_what_it_does(served, lm, browser, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    messages = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(served[0])
    for label, value in (("Text", "Once"), ("max_tokens", "9"), ("temperature", "0")):
        page.get_by_label(label).fill(value)
    page.get_by_role("button", name="Continue").focus()
    page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text("Done.").wait_for()
    assert page.get_by_label("Text").input_value() == lm.generate(
        "Once", max_tokens=9, temperature=0
    )
    assert page.evaluate("document.activeElement.id") == "run"
    page.get_by_label("max_tokens").fill("4000")
    page.keyboard.press("Control+Enter")
    page.get_by_role("status").get_by_text("Writing").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("status").get_by_text("Stopped.").wait_for()
    page.get_by_label("top_p").fill("")
    page.keyboard.press("Control+Enter")
    page.get_by_role("status").get_by_text("top_p: ").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    is_dark = page.evaluate("getComputedStyle(document.body).color") == "rgb(255, 255, 255)"
    assert is_dark == (scheme == "dark") and messages == []


def ask_until(url, until, address, asks_again=True):
    """Asks one request at a time from a local address; returns the seconds of each answer."""
    found = []
    connection = http.client.HTTPConnection(url[7:], timeout=60, source_address=(address, 0))
    while time.monotonic() < until:
        start = time.monotonic()
        connection.request("POST", "/v1/completions", BODY)
        response = connection.getresponse()
        response.read()
        assert response.status == 200 or response.headers["Retry-After"] == "1"
        if response.status == 200:
            found.append(time.monotonic() - start)
        else:
            assert response.status == 503
            time.sleep(1)
    connection.close()
    return found


@pytest.mark.slow
def test_a_hundred_clients_do_not_slow_down_those_of_another_address(served):
    highest = []
    with ThreadPoolExecutor(104) as threads:
        for num_others in (0, 100):
            until = time.monotonic() + 8
            crowd = [
                threads.submit(ask_until, served[0], until, "127.0.0.2") for _ in range(num_others)
            ]
            good = [threads.submit(ask_until, served[0], until, f"127.0.0.{k}") for k in (3, 4)]
            highest.append(np.quantile(np.concatenate([each.result() for each in good]), 0.99))
            answered = [seconds for each in crowd for seconds in each.result()]
    assert len(answered) > 20 and max(answered) < 10 * highest[0]  # no request starves
    assert highest[1] < 3 * highest[0]


DEEP = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)


def mutated(draw):
    """One request of random faults in its method, path, headers, body or framing."""
    good = {"prompt": "ab", "max_tokens": 1, "n": 1, "stop": ["x"], "logprobs": 1, "echo": True}
    good |= {"top_k": 3, "seed": 1, "stream": False, "session": "", "temperature": 0.5}
    values = [None, -1, 0, 2**70, 1e400, "", "\ud800", [], [[]], [1], {}, True, "a" * 99, 1e-30]
    for _ in range(draw.choice([0, 0, 0, 1, 2])):
        good[draw.choice([*good, "other", "tokens"])] = draw.choice(values)
    body = bytearray(json.dumps(good).encode())
    for _ in range(draw.choice([0, 0, 0, 0, 1, 3])):
        body[draw.randrange(len(body))] = draw.randrange(256)
    body = draw.choice([body] * 40 + [DEEP, b"\xff\xfe", b"x" * (5 << 20)])
    paths = ["", "health", "metrics", "v1/models", "v1/models/%00", "tokenize", "detokenize"]
    paths += ["a/../b", "%ff", "\u00e9", "x" * 9000, "?a=%zz"]
    path = draw.choice(["v1/completions"] * 20 + paths)
    methods = ["GET", "HEAD", "PUT", "OPTIONS", "CONNECT", "x y", "\x00"]
    method = draw.choice(["POST"] * 20 + methods)
    length = draw.choice([len(body)] * 20 + [-1, "1.5", "x", "1, 2", len(body) // 2])
    headers = {"Host": "x", "Connection": "close", "Content-Length": length}
    for _ in range(draw.choice([0, 0, 0, 1, 2])):
        names = ["Content-Encoding", "Transfer-Encoding", "Expect", "Upgrade", "Range", "A b"]
        values = ["gzip", "chunked", "100-continue", "bytes=9-1", "x" * 9000, "\xff\x00", ""]
        names += ["\x00", "Content-Type", "Authorization"]
        headers[draw.choice(names)] = draw.choice(values)
    head = [f"{method} /{path} HTTP/{draw.choice(['1.1'] * 20 + ['1.0', '2', 'x'])}"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def status_of(address, content):
    """Returns the status of the answer; 0 where the server still waits for a rest."""
    with socket.create_connection(address, timeout=5) as connection:
        with contextlib.suppress(OSError):  # the server has answered, and reads no more
            connection.sendall(content)
        try:
            answer = connection.recv(1 << 16)
            if b" 100 Continue" in answer:
                answer = connection.recv(1 << 16)
        except TimeoutError:
            return 0
        except ConnectionError:
            return 400
    return int(answer.split()[1]) if answer else 400


@pytest.mark.slow
def test_mutated_requests_are_answered_or_refused(served):
    url, process = served
    host, port = url[7:].split(":")
    draw = random.Random(0)
    requests = [mutated(draw) for _ in range(2000)]
    with ThreadPoolExecutor(4) as threads:
        found = Counter(threads.map(lambda each: status_of((host, int(port)), each), requests))
    refused = {200, 400, 404, 405, 408, 411, 413, 414, 415, 417, 431, 503}
    assert set(found) <= {0, *refused} and found[200] > 100 and found[400] > 300, found
    assert found[0] < 100, found
    assert len(ask_until(url, time.monotonic() + 1, "127.0.0.1")) > 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(3) == 0
