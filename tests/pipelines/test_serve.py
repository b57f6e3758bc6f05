"""The job that serves an export, as a user runs it."""

import signal
import subprocess
import sys

import pytest

from pipelines.command_line import main
from tests.serving.byte_model import write_version
from tests.serving.measure_load import address_in
from tests.serving.servers import MODEL_NAME, TRANSPORTS
from txl_tf.serving import SamplingSettings, ServingSession


@pytest.mark.parametrize(
    ("options", "exit_code", "words"),
    [
        (["--port", "65536"], 2, "--port 65536"),
        (["--grpc-port", "-1"], 2, "--grpc-port -1"),
        (["--poll-seconds", "0"], 2, "--poll-seconds 0"),
        (["--name", "a/b"], 2, "--name a/b"),
        ([], 66, "no versions"),
    ],
)
def test_wrong_arguments_are_answered_at_once(tmp_path, capsys, options, exit_code, words):
    assert main(["serve", "--export", str(tmp_path), *options]) == exit_code
    assert words in capsys.readouterr().err


def test_a_single_version_is_not_what_is_served(tmp_path, capsys):
    (tmp_path / "SHA256SUMS").write_bytes(b"")
    assert main(["serve", "--export", str(tmp_path)]) == 66
    assert "folder above" in capsys.readouterr().err


def test_a_damaged_version_is_not_served(tmp_path, capsys):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "SHA256SUMS").write_text("0" * 64 + "  saved_model.pb\n")
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"other")
    ports = ["--port", "0", "--grpc-port", "0"]
    previous = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["serve", "--export", str(tmp_path), *ports]) == 66
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert "SHA-256" in capsys.readouterr().err


@pytest.mark.slow
def test_the_job_serves_until_it_is_told_to_end(tmp_path):
    write_version(tmp_path, 4)
    command = [sys.executable, "-m", "pipelines.serve", "--export", str(tmp_path)]
    command += ["--name", MODEL_NAME, "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "version: 4\n"
            server = address_in(process.stdout)
            texts = []
            for name in TRANSPORTS:
                transport = server.transport(name)
                greedy = SamplingSettings(temperature=0.0)
                texts.append(ServingSession(transport).generate_text(5, "abc", greedy))
                transport.close()
        finally:
            process.terminate()
        assert process.wait(timeout=30) == 0
    assert texts[0] == texts[1]
    assert len(texts[0]) == 5
