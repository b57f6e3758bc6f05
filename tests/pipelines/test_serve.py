"""The job that serves text, as a user runs it."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from pipelines.command_line import main
from tests.serving.conftest import lm

__all__ = ["lm"]


@pytest.fixture
def folder(lm, tmp_path):
    lm.save_to_preset(tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.parametrize(
    ("option", "value", "exit_code"),
    [("--port", "65536", 2), ("--host", "a b", 74), ("--rows", "0", 2), ("--step", "3", 2)],
)
def test_wrong_arguments_are_named(folder, capsys, option, value, exit_code):
    assert main(["serve", "--model", str(folder), option, value]) == exit_code
    assert f"{option} {value}" in capsys.readouterr().err


def test_a_folder_without_a_model_and_a_taken_port_are_named(folder, tmp_path, capsys):
    assert main(["serve", "--model", str(tmp_path)]) == 66
    assert "run, a checkpoint" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--model", str(folder), "--port", port]) == 74
    assert f"--port {port}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_job_serves_until_it_is_told_to_end(folder, number):
    command = [
        sys.executable,
        "-m",
        "pipelines.command_line",
        "serve",
        "--export",
        str(folder),
        "--port",
        "0",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        name, url = process.stdout.readline().split()
        body = json.dumps({"prompt": "Once", "max_tokens": 4096, "stream": True}).encode()
        start = time.monotonic()
        with urllib.request.urlopen(f"{url}/v1/completions", body) as response:
            assert response.readline().startswith(b"data: ")
            assert time.monotonic() - start < 2
            process.send_signal(number)
            assert process.wait(10) == 0
        assert name == "mine:" and "Traceback" not in process.stderr.read()
