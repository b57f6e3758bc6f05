"""The job that serves text, as a user runs it."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time

import openai
import pytest

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
def test_wrong_arguments_are_named(folder, txl, option, value, exit_code):
    txl("serve", "--workdir", folder, option, value, code=exit_code, says=f"{option} {value}")


def test_a_folder_without_a_model_and_a_port_of_another_are_named(folder, tmp_path, txl):
    txl("serve", "--workdir", tmp_path, code=66, says="run, a checkpoint")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        txl("serve", "--workdir", folder, "--port", port, code=74, says=f"--port {port}")


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
        answer = json.loads(subprocess.run(request, capture_output=True, check=True).stdout)
        assert answer["usage"]["completion_tokens"] == 50
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
def test_the_page_writes_by_keyboard_and_shows_its_state(served, lm, browser, width, scheme):
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


@pytest.mark.slow
def test_a_signal_ends_the_server(served):
    _, process = served
    process.send_signal(signal.SIGTERM)
    assert process.wait(3) == 0
