"""The same run on other machines: replicas, workers, and changes of them on the way."""

import signal
import subprocess
import time

import pytest

from tests.distribution.two_workers import started
from tests.pipelines.txl_process import command, environment, run_txl
from txl_tf.training.ledger import parse_line

NUM_STEPS = 200
SETTINGS = [
    # Every replica is traced apart: more layers only take longer.
    "--set",
    "model.num_layers=1",
    "--set",
    f"training.num_steps={NUM_STEPS}",
    "--set",
    "training.global_batch_size=8",
    "--set",
    "training.checkpoint_every_steps=50",
    "--set",
    "training.steps_per_loop=25",
]


def ledger_of(workdir):
    _, *lines = (workdir / "ledger.jsonl").read_text().splitlines()
    return [parse_line(line) for line in lines]


def assert_same_run(one, other):
    assert [line.step for line in one] == list(range(1, NUM_STEPS + 1))
    for first, second in zip(one, other, strict=True):
        # The same tokens in the same rows, to the bit.
        assert second.step == first.step
        assert second.checksum == first.checksum
        assert second.nats_per_token == pytest.approx(first.nats_per_token, rel=1e-5), first.step
        assert second.gradient_norm == pytest.approx(first.gradient_norm, rel=1e-4), first.step


@pytest.fixture(scope="module")
def train(data_folder, config_file, tmp_path_factory):
    def start(workdir, *arguments):
        finished = run_txl(
            *("train", "--config", config_file, "--data", data_folder),
            *("--workdir", workdir, *SETTINGS, *arguments),
        )
        assert finished.returncode == 0, finished.stderr
        return finished

    return start


@pytest.fixture(scope="module")
def single(train, tmp_path_factory):
    """The run on one device."""
    workdir = tmp_path_factory.mktemp("single") / "run"
    train(workdir)
    return ledger_of(workdir)


@pytest.mark.slow
def test_any_number_of_replicas_goes_on_with_the_run_of_another(
    train, single, data_folder, config_file, tmp_path
):
    workdir = tmp_path / "run"
    # Three do not divide the rows.
    for stop_step, num_replicas in ((50, 4), (100, 3)):
        process = subprocess.Popen(
            command(
                *("train", "--config", config_file, "--data", data_folder),
                *("--workdir", workdir, "--cpu-replicas", num_replicas, *SETTINGS),
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        while not (workdir / "checkpoints" / f"step-{stop_step:08d}").exists():
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 75
        assert stop_step <= len(ledger_of(workdir)) < NUM_STEPS
    finished = train(workdir, "--cpu-replicas", 2)
    assert "Going on from the checkpoint of step" in finished.stderr
    assert_same_run(single, ledger_of(workdir))


@pytest.mark.slow
def test_two_workers_train_as_one(data_folder, config_file, single, tmp_path):
    words = command(
        *("train", "--config", config_file, "--data", data_folder),
        *("--workdir", tmp_path / "run", *SETTINGS),
    )
    workers = started(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    outputs = [worker.communicate(timeout=600)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert_same_run(single, ledger_of(tmp_path / "run"))
