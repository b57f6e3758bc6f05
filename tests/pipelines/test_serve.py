"""The job that serves an export, as a user runs it."""

import hashlib
import random
import signal
import subprocess
import sys
import threading
import time

import grpc
import pytest

from pipelines.command_line import main
from tests.measurements.measure_crowds import slow_clients
from tests.measurements.measure_load import address_in
from tests.serving.byte_model import write_version
from tests.serving.good_requests import good_message
from tests.serving.hostile_requests import PREDICT
from tests.serving.servers import MODEL_NAME, TRANSPORTS
from txl_tf.serving import SamplingSettings, ServingSession

END_SECONDS = 10.0
# Where SIGHUP is ignored, as under `nohup`, a server ignores it too.
IGNORES_HANGUP = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
SIGNALS = [signal.SIGTERM, signal.SIGINT, *([] if IGNORES_HANGUP else [signal.SIGHUP])]


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
    assert main(["serve", "--export", str(tmp_path), *ports]) == 66
    assert "SHA-256" in capsys.readouterr().err


@pytest.mark.slow
def test_the_job_serves_until_it_is_told_to_end(tmp_path):
    write_version(tmp_path, 4)
    with _serving(tmp_path) as process:
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


def _serving(folder):
    command = [sys.executable, "-m", "pipelines.serve", "--export", str(folder)]
    command += ["--name", MODEL_NAME, "--port", "0", "--grpc-port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True)


def _await_handlers(process):
    """Waits until the server handles signals; SIGINT is handled from the start, by Python."""
    wanted = {number - 1 for number in SIGNALS if number != signal.SIGINT}
    while True:
        assert process.poll() is None
        with open(f"/proc/{process.pid}/status") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
        if all(caught >> place & 1 for place in wanted):
            return
        time.sleep(0.02)


def _require_end(process, number):
    start = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=3 * END_SECONDS)
    assert time.monotonic() - start < END_SECONDS
    assert process.returncode == 0
    assert "Traceback" not in errors


def write_endless_version(version):
    """A version that takes minutes to verify: nothing bounds how long a vocabulary is."""
    assets = version / "assets"
    assets.mkdir(parents=True)
    with (assets / "words.txt").open("wb") as file:
        file.truncate(200 << 30)  # no disk is taken
    (version / "saved_model.pb").write_bytes(b"")
    digest = hashlib.sha256(b"").hexdigest()
    sums = f"{digest}  saved_model.pb\n{digest}  assets/words.txt\n"
    (version / "SHA256SUMS").write_text(sums)


def test_every_signal_ends_a_server_that_is_not_there_yet(tmp_path):
    write_endless_version(tmp_path / "1")
    processes = [_serving(tmp_path) for _ in SIGNALS]
    for process, number in zip(processes, SIGNALS, strict=True):
        _await_handlers(process)  # from then on TensorFlow is being imported
        _require_end(process, number)


@pytest.mark.slow
def test_a_signal_ends_a_server_that_verifies_for_minutes(tmp_path):
    write_endless_version(tmp_path / "1")
    with _serving(tmp_path) as process:
        time.sleep(12.0)
        assert process.poll() is None
        _require_end(process, signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_server_with_endless_requests_and_slow_clients(tmp_path, number):
    write_version(tmp_path, 1)
    with _serving(tmp_path) as process:
        server = address_in(process.stdout)
        with (
            slow_clients(server, 40),
            grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
        ):
            content = _long_request()
            asked = channel.unary_unary(PREDICT).future(content)
            threading.Event().wait(2.0)
            assert asked.running()
            # A version that is being verified, too.
            write_endless_version(tmp_path / "2")
            threading.Event().wait(3.0)
            _require_end(process, number)
            assert asked.code() != grpc.StatusCode.OK


def _long_request():
    """A small message that the model takes minutes for: its one row stands for thousands."""
    draws = (random.Random(seed) for seed in range(100))
    request = next(
        message
        for message in map(good_message, draws)
        if message.model_spec.signature_name == "generate"
    )
    for tensor in request.inputs.values():
        tensor.tensor_shape.dim[0].size = 20_000
        tensor.ClearField("tensor_content")
        [tensor.int_val, tensor.float_val][tensor.dtype == 1].append(1)
    request.inputs["max_tokens"].int_val[0] = 64
    return request.SerializeToString()
