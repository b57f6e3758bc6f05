"""Training on a slice of several hosts that one process drives, until one of them goes."""

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.distribution.pod import Pod, running_pod, start_training
from tests.pipelines.interrupted_run import InterruptedRun, training_words
from tests.small_models import checkpoints_of

NUM_STEPS = 100
CHECKPOINT_EVERY_STEPS = 20
PREEMPTED = 75


# Only checkpoints end the loops.
SETTINGS = (
    "--set=training.global_batch_size=6",
    f"--set=training.steps_per_loop={NUM_STEPS}",
    f"--set=training.checkpoint_every_steps={CHECKPOINT_EVERY_STEPS}",
)


class PodRun(InterruptedRun):
    """A run on slices whose hosts go away."""

    def __init__(self, words: Sequence[object], workdir: Path) -> None:
        super().__init__((*words, *SETTINGS), workdir, NUM_STEPS)
        self.log = workdir.with_suffix(".log")

    def start_on(self, pod: Pod) -> subprocess.Popen:
        """Starts or resumes the run on a slice."""
        return start_training(pod, self.log, *self._words)

    def start_and_reach(self, pod: Pod, step: int) -> subprocess.Popen:
        """Starts the run and waits for the checkpoint of a step.

        TensorFlow's remote execution aborts once in some hundred runs on such servers
        ("Mutex corrupt"). `run_until_done.sh` starts a run again that a signal ended.
        """
        process = self.start_on(pod)
        num_aborts = 0
        while self.checkpoint_step() < step:
            if process.poll() == -signal.SIGABRT and num_aborts < 2:
                num_aborts += 1
                print(f"started again after an abort:\n{self.log.read_text()}")
                process = self.start_on(pod)
            assert process.poll() is None, self.log.read_text()
            time.sleep(0.01)
        return process

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the last checkpoint."""
        return checkpoints_of(self.workdir).load(NUM_STEPS)

    def assert_same_as(self, other: "PodRun") -> None:
        """Fails unless both took the same steps on the same data.

        Not to the same bits: two unbroken runs on such servers differ in the last
        bit of a loss too, after some dozens of steps. Within one process they do not.
        """
        own, others = self._steps(), other._steps()
        tokens = [[(line["step"], line["checksum"]) for line in each] for each in (own, others)]
        assert tokens[0] == tokens[1]
        losses = [[float.fromhex(line["loss"]) for line in each] for each in (own, others)]
        np.testing.assert_allclose(*losses, rtol=1e-4)
        expected = other.arrays()
        for name, array in self.arrays().items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(array, expected[name], atol=2e-3, err_msg=name)
            else:
                np.testing.assert_array_equal(array, expected[name], err_msg=name)

    def _steps(self) -> list[dict]:
        """Step, checksum, loss and norm of each step."""
        lines = (self.workdir / "ledger.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines[1:]]


@pytest.mark.slow
def test_a_run_that_lost_each_host_resumes_the_same_steps_and_on_another_number(tmp_path):
    words = training_words(tmp_path)
    unbroken, run = (PodRun(words, tmp_path / name) for name in ("unbroken", "lost"))
    unbroken.finish()
    for lost in (0, 1):
        with running_pod(2) as pod:
            process = run.start_and_reach(pod, (lost + 1) * CHECKPOINT_EVERY_STEPS)
            pod.processes[lost].kill()
            assert process.wait(timeout=180) == PREEMPTED, run.log.read_text()
            output = run.log.read_text()
            assert f"does not answer any more.\n  localhost:{pod.ports[lost]}" in output
            assert "Traceback" not in output
    # A host that is told to go serves until the run is saved.
    with running_pod(2) as pod:
        process = run.start_and_reach(pod, 3 * CHECKPOINT_EVERY_STEPS)
        pod.processes[1].send_signal(signal.SIGTERM)
        assert process.wait(timeout=180) == PREEMPTED, run.log.read_text()
        log = run.log.read_text()
        assert "Stopped after step" in log and "Traceback" not in log
        assert f"the host localhost:{pod.ports[1]} is being taken away" in log
        # It was released before its time was over.
        assert pod.processes[1].wait(timeout=20) == 128 + signal.SIGTERM
        assert pod.processes[0].poll() is None
    step = run.checkpoint_step()
    with running_pod(1) as pod:
        assert run.start_on(pod).wait(timeout=900) == 0, run.log.read_text()
    assert f"Resuming from the checkpoint of step {step}." in run.log.read_text()
    run.assert_same_as(unbroken)
