"""The same run on other machines: replicas, workers, and changes of them on the way."""

import signal
import subprocess
import time

import pytest

from tests.distribution.two_workers import started
from tests.pipelines.txl_process import command, run_txl
from txl_tf.training.ledger import parse_line

PREEMPTED = 75
NUM_STEPS = 90
SETTINGS = [
    "--set",
    f"training.num_steps={NUM_STEPS}",
    "--set",
    "training.global_batch_size=8",
    "--set",
    "training.checkpoint_every_steps=15",
    "--set",
    "training.steps_per_loop=15",
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


@pytest.mark.slow
def test_any_number_of_replicas_and_workers_resumes_the_run_of_another(
    data_folder, config_file, server, tmp_path
):
    workdir, single = tmp_path / "run", tmp_path / "single"
    settings = ("train", "--config", config_file, "--data", data_folder, *SETTINGS)
    run_txl(*settings, "--workdir", single)
    base = (*settings, "--workdir", workdir)
    checkpoints = [workdir / "checkpoints" / f"step-{step:08d}" for step in (15, 45)]
    # Three do not divide the rows.
    replicas = ("--cpu-replicas", "3")
    process = server.start(*base, *replicas, output=tmp_path / "output")
    assert process.wait_until(checkpoints[0].exists), process.output()
    process.send(signal.SIGTERM)
    assert process.wait() == PREEMPTED

    words = command(*base)
    workers = started(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not checkpoints[1].exists():
        assert [worker.poll() for worker in workers] == [None, None]
        time.sleep(0.01)
    # All stop when one of them is told to.
    workers[1].send_signal(signal.SIGTERM)
    outputs = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [PREEMPTED, PREEMPTED], outputs
    assert "the process received SIGTERM" in outputs[1]
    assert "another worker is being stopped" in outputs[0]
    num_steps = len(ledger_of(workdir))
    assert num_steps < NUM_STEPS
    assert (workdir / "checkpoints" / f"step-{num_steps:08d}").exists()

    workers = started(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    outputs = [worker.communicate(timeout=600)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert f"Resuming from the checkpoint of step {num_steps}." in outputs[0]
    assert_same_run(ledger_of(single), ledger_of(workdir))
