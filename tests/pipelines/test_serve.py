"""The job that serves text, as a user runs it."""

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from pipelines.command_line import main
from tests.serving.conftest import lm

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


@pytest.mark.slow
def test_a_signal_ends_the_server(served):
    _, process = served
    process.send_signal(signal.SIGTERM)
    assert process.wait(3) == 0
