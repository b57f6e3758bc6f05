"""Runs that are stopped at random moments (SIGTERM, Ctrl-C, SIGHUP) and resumed by one command.

The test stops a run four times. As many times as one likes, with figures:

    python -m tests.pipelines.test_preemption --stops 50 --steps 300
"""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.pipelines.fork_server import ForkedRun, ForkServer
from tests.pipelines.interrupted_run import (
    EVALUATE_EVERY_STEPS,
    InterruptedRun,
    Interrupter,
    interrupt_as_asked,
)

PREEMPTED = 75
# The time that Google Cloud gives a preempted machine.
GRACE_SECONDS = 30.0
# Between saves, in one, in an evaluation, and while the first step is being traced.
KINDS = ("step", "save", "evaluation", "start")
# Of other numbers than kinds, so that every signal comes at every kind of moment.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopper(Interrupter):
    """Stops runs again and again, and measures how long that takes."""

    def __init__(self, server: ForkServer, folder: Path, num_steps: int, seed: int) -> None:
        super().__init__(server, folder, num_steps, seed)
        self.num_twice = 0
        self.num_evaluations_cut = 0
        self.seconds = []

    def _wait_for_begin(self, run: InterruptedRun, process: ForkedRun) -> None:
        assert process.wait_until(run.is_locked), process.output()

    def _interrupt_run(self, run: InterruptedRun, number: int) -> None:
        for step in self._moments(number):
            kind, reached = KINDS[self.num_interruptions % len(KINDS)], run.checkpoint_step()
            process = run.start()
            self._wait(run, process, kind, max(step, reached + 1))
            begin = time.monotonic()
            sent = [SIGNALS[self.num_interruptions % len(SIGNALS)]]
            process.send(sent[0])
            is_twice = self._random.random() < 0.5
            if is_twice:
                time.sleep(self._random.uniform(0.0, 0.1))
                # Not a second Ctrl-C, which does not wait for the save.
                sent.append(self._random.choice(sorted({*SIGNALS} - {sent[0]})))
                process.send(sent[1])
            exit_code = process.wait()
            if exit_code == 0:
                return  # it was faster; another run takes the rest of the stops
            assert exit_code == PREEMPTED, process.output()
            self.kinds[kind] += 1
            self.num_twice += is_twice
            self.num_evaluations_cut += kind == "evaluation" and "valid:" not in process.output()
            self.seconds.append(time.monotonic() - begin)
            self._check(run, process, reached, sent)
            print(f"stop {self.num_interruptions}: {kind}, step {run.ledger_step()}", flush=True)
        reached = run.checkpoint_step()
        process = run.finish()
        assert run.has_gone_on_from(process) == reached

    def _check(
        self, run: InterruptedRun, process: ForkedRun, reached: int, sent: Sequence[signal.Signals]
    ) -> None:
        """Nothing is lost: the checkpoint is of the last step that was done."""
        assert run.has_gone_on_from(process) == reached
        step = run.checkpoint_step()
        assert step == run.ledger_step() >= reached
        # Of two that wait for a busy process, Python takes the one with the lower number first.
        said = [f"Stopped after step {step}: the process received {each.name}." for each in sent]
        assert any(each in process.output() for each in said)
        assert not run.is_saving()
        assert not run.is_locked()
        assert self.seconds[-1] < GRACE_SECONDS

    def _wait(self, run: InterruptedRun, process: ForkedRun, kind: str, step: int) -> None:
        """Waits for the moment; a process may end before it comes."""
        # Before that, nothing has begun that could be lost.
        process.wait_until(run.is_locked)
        if kind == "start":
            moment = time.monotonic() + self._random.uniform(0.0, self._start_seconds)
            reached = run.checkpoint_step()
            process.wait_until(lambda: time.monotonic() >= moment or run.ledger_step() > reached)
            return
        if kind == "evaluation":
            # It takes much longer than steps do, because every process traces it again.
            period = EVALUATE_EVERY_STEPS
            process.wait_until(
                lambda: run.ledger_step() >= step and run.ledger_step() % period == 0
            )
            time.sleep(self._random.uniform(0.0, 0.5))
            return
        process.wait_until(lambda: run.ledger_step() >= step)
        if kind == "save":
            process.wait_until(run.is_saving)
        time.sleep(self._random.uniform(0.0, 0.01))


class Leaver(Stopper):
    """Presses Ctrl-C twice: the second one ends the process within a second."""

    def _interrupt_run(self, run: InterruptedRun, number: int) -> None:
        for step in self._moments(number):
            kind = KINDS[self.num_interruptions % len(KINDS)]
            process = run.start()
            self._wait(run, process, kind, max(step, run.checkpoint_step() + 1))
            process.send(signal.SIGINT)
            time.sleep(self._random.uniform(0.0, 0.3))
            process.send(signal.SIGINT)
            begin = time.monotonic()
            exit_code = process.wait()
            if exit_code == 0:
                return
            self.seconds.append(time.monotonic() - begin)
            # It may have saved and ended, or be about to, when the second one comes.
            assert exit_code in (PREEMPTED, 130, -signal.SIGINT), process.output()
            assert self.seconds[-1] < 1.0
            self.kinds[kind] += 1
        run.finish()


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_run_within_a_second(server, tmp_path):
    Leaver(server, tmp_path, num_steps=120, seed=1).interrupt(4)


@pytest.mark.slow
def test_a_run_that_is_stopped_again_and_again_loses_nothing(server, tmp_path):
    assert Stopper(server, tmp_path, num_steps=120, seed=1).interrupt(4) == set(KINDS)


def main() -> None:
    stopper = interrupt_as_asked({"train": Stopper, "leave": Leaver}, "stops", times=50, steps=300)
    print(f"{stopper.num_twice} by two signals")
    print(f"{stopper.num_evaluations_cut} of them cut an evaluation short")
    print("0 steps lost; every ledger and last checkpoint is that of an unbroken run")
    print(
        f"from signal to end: {sum(stopper.seconds) / stopper.num_interruptions:.2f} s on average, "
        f"at most {max(stopper.seconds):.2f} s"
    )


if __name__ == "__main__":
    main()
