"""TensorBoard and the report in a real Chromium, which reads curves from both."""

import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from pipelines.command_line import main

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]


def page_of(address, folder, budget_milliseconds):
    """The page as the browser has it after its scripts have run."""
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,2400")
    command = [CHROMIUM, *options, f"--user-data-dir={folder / 'profile'}"]
    command += [f"--virtual-time-budget={budget_milliseconds}", "--dump-dom", address]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    return finished.stdout


@pytest.fixture
def tensorboard(untouched):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    logs = str(untouched / "tensorboard")
    command = [sys.executable, "-W", "ignore", "-m", "tensorboard.main", "--logdir", logs]
    with subprocess.Popen(
        [*command, "--port", str(port), "--host", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while "loss/perplexity" not in answer_of(f"{address}/data/plugin/scalars/tags"):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.5)
        yield address
        process.terminate()


def answer_of(address):
    try:
        with urllib.request.urlopen(address, timeout=10) as response:
            return response.read().decode()
    except OSError:
        return ""


def test_tensorboard_opens_on_pages_with_curves(tensorboard, tmp_path):
    # The page is a component that hides its text; a chart that is drawn has a tooltip beside it.
    assert "vz-line-chart-tooltip" in page_of(f"{tensorboard}/#custom_scalars", tmp_path, 30_000)
    shown = page_of(f"{tensorboard}/#timeseries", tmp_path, 30_000)
    assert "loss/perplexity" in shown and "valid" in shown


def test_the_report_has_curves_in_a_browser(untouched, tmp_path):
    out = tmp_path / "report.html"
    assert main(["report", "--workdir", str(untouched), "--out", str(out)]) == 0
    shown = page_of(out.as_uri(), tmp_path, 2000)
    figure = re.search(r'<figure data-tag="loss/perplexity">.*?</figure>', shown, re.DOTALL)[0]
    lines = re.findall(r'<path d="([^"]*)" clip-path[^>]*var\(--series-(\d)\)', figure, re.DOTALL)
    # Eight loops of training and two evaluations.
    points = {series: len(re.findall(r"[ML] ", path)) for path, series in lines}
    assert points == {"1": 8, "2": 2}
