"""Runs that are stopped at random moments (SIGTERM, Ctrl-C, SIGHUP) and resumed by one command."""

import signal
import time

import pytest

from tests.pipelines.interrupted_run import Interrupter, resumed_step, training_words

PREEMPTED = 75
# The time that Google Cloud gives a preempted machine.
GRACE_SECONDS = 30.0
# Of other numbers than the kinds, so that every signal comes at every kind of moment.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("server")]


class Stopper(Interrupter):
    """Stops runs between saves, in one, in an evaluation, and while the first step is traced."""

    kinds = ("step", "save", "evaluation", "start")
    # Before that, nothing has begun that could be lost.
    waits_for_lock = True

    def end(self, run, process, reached):
        begin = time.monotonic()
        signals = [SIGNALS[self.counts.total() % len(SIGNALS)]]
        process.send(signals[0])
        if self._random.random() < 0.5:
            time.sleep(self._random.uniform(0.0, 0.1))
            # Not a second Ctrl-C, which does not wait for the save.
            signals.append(self._random.choice(sorted({*SIGNALS} - {signals[0]})))
            process.send(signals[1])
        exit_code = process.wait()
        seconds = time.monotonic() - begin
        if exit_code == 0:
            return False
        assert exit_code == PREEMPTED, process.output()
        assert resumed_step(process) == reached
        # Nothing is lost: the checkpoint is of the last step that was done.
        step = run.checkpoint_step()
        assert step == run.ledger_step() >= reached
        # Of two that wait for a busy process, Python takes the one with the lower number first.
        texts = [
            f"Stopped after step {step}: the process received {each.name}." for each in signals
        ]
        assert any(text in process.output() for text in texts)
        assert not run.is_saving() and not run.is_locked()
        assert seconds < GRACE_SECONDS
        print(f"{len(signals)} signals, {seconds:.2f} seconds")
        return True


class Leaver(Stopper):
    """Presses Ctrl-C twice: the second one ends the process within a second."""

    def end(self, run, process, reached):
        process.send(signal.SIGINT)
        time.sleep(self._random.uniform(0.0, 0.3))
        process.send(signal.SIGINT)
        begin = time.monotonic()
        exit_code = process.wait()
        # It may have saved and ended, or be about to, when the second one comes.
        assert exit_code in (0, PREEMPTED, 130, -signal.SIGINT), process.output()
        assert exit_code == 0 or time.monotonic() - begin < 1.0
        return exit_code != 0


def test_a_second_ctrl_c_ends_a_run_within_a_second(tmp_path):
    Leaver(training_words(tmp_path), tmp_path, num_steps=120, seed=1).interrupt(4)


def test_a_run_that_is_stopped_again_and_again_loses_nothing(tmp_path):
    stopper = Stopper(training_words(tmp_path), tmp_path, num_steps=120, seed=1)
    assert stopper.interrupt(4) == set(Stopper.kinds)
