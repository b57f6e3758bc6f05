"""Runs that are killed (SIGKILL) at random moments and finished by the same command.

The test kills a run six times. As many as one likes, with figures:

    python -m tests.pipelines.test_kill --kills 200 --steps 1000 [--job finetune]
"""

import math
import signal
import time
from pathlib import Path

import pytest

from tests.pipelines.fork_server import ForkedRun, ForkServer
from tests.pipelines.interrupted_run import (
    CHECKPOINT_EVERY_STEPS,
    InterruptedFineTuning,
    InterruptedRun,
    Interrupter,
    interrupt_as_asked,
)

# In turn between saves, in one, and before the first step of a process.
KINDS = ("step", "save", "start", "step", "save", "step")


class Killer(Interrupter):
    """Kills runs again and again, and counts what that cost."""

    def __init__(self, server: ForkServer, folder: Path, num_steps: int, seed: int) -> None:
        super().__init__(server, folder, num_steps, seed)
        self.num_half_written = 0
        self.steps_redone = []

    def _interrupt_run(self, run: InterruptedRun, number: int) -> None:
        for step in self._moments(number):
            kind = KINDS[self.num_interruptions % len(KINDS)]
            checkpoint_step = run.checkpoint_step()
            process = run.start()
            self._wait(run, process, kind, max(step, checkpoint_step + 1))
            process.send(signal.SIGKILL)
            exit_code = process.wait()
            if exit_code == 0:
                return  # it was faster; another run takes the rest of the kills
            assert exit_code == -signal.SIGKILL, process.output()
            assert run.has_gone_on_from(process) in (0, checkpoint_step)
            self.kinds[kind] += 1
            self.num_half_written += run.is_saving()
            self.steps_redone.append(run.ledger_step() - run.checkpoint_step())
            print(f"kill {self.num_interruptions}: {kind}, step {run.ledger_step()}", flush=True)
            assert 0 <= self.steps_redone[-1] <= CHECKPOINT_EVERY_STEPS
        checkpoint_step = run.checkpoint_step()
        process = run.finish()
        assert run.has_gone_on_from(process) == checkpoint_step

    def _wait(self, run: InterruptedRun, process: ForkedRun, kind: str, step: int) -> None:
        """Waits for the moment; a process may end before it comes."""
        checkpoint_step, moment = run.checkpoint_step(), math.inf
        if kind == "start":
            step = checkpoint_step + 1
            moment = time.monotonic() + self._random.uniform(0.0, self._start_seconds)

        def is_due(is_reached: bool) -> bool:
            return is_reached or time.monotonic() >= moment

        # The lines of the process before are cut off before there are new ones.
        process.wait_until(lambda: is_due(run.ledger_step() <= checkpoint_step))
        process.wait_until(lambda: is_due(run.ledger_step() >= step))
        if kind == "save":
            process.wait_until(run.is_saving)
        time.sleep(self._random.uniform(0.0, 0.01))


class FineTuningKiller(Killer):
    """Kills runs of `txl finetune`."""

    run_type = InterruptedFineTuning


@pytest.mark.slow
def test_a_run_killed_again_and_again_takes_the_same_steps_to_the_same_bits(server, tmp_path):
    killer = Killer(server, tmp_path, num_steps=120, seed=1)
    assert killer.interrupt(6) == set(KINDS)


@pytest.mark.slow
def test_fine_tuning_that_is_killed_again_and_again_takes_the_same_bits(server, tmp_path):
    killer = FineTuningKiller(server, tmp_path, num_steps=80, seed=2)
    assert killer.interrupt(4) <= set(KINDS)


def main() -> None:
    killers = {"train": Killer, "finetune": FineTuningKiller}
    killer = interrupt_as_asked(killers, "kills", times=200, steps=1000)
    print(f"{killer.num_half_written} of them left a checkpoint half written")
    print(
        f"steps redone per kill: at most {max(killer.steps_redone)}, "
        f"{sum(killer.steps_redone) / killer.num_interruptions:.1f} on average"
    )
    print("every ledger and every array of the last checkpoint is that of an unbroken run")


if __name__ == "__main__":
    main()
