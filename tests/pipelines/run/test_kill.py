"""Runs that are killed (SIGKILL) at random moments and finished by the same command."""

import signal

import pytest

from tests.pipelines.interrupted_run import (
    CHECKPOINT_EVERY_STEPS,
    Interrupter,
    fine_tuning_words,
    resumed_step,
    training_words,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("server")]


class Killer(Interrupter):
    """Kills runs between saves, in one, and before the first step of a process."""

    kinds = ("step", "save", "start", "step", "save", "step")

    def end(self, run, process, reached):
        process.send(signal.SIGKILL)
        exit_code = process.wait()
        if exit_code == 0:
            return False
        assert exit_code == -signal.SIGKILL, process.output()
        assert resumed_step(process) in (0, reached)
        assert 0 <= run.ledger_step() - run.checkpoint_step() <= CHECKPOINT_EVERY_STEPS
        return True


def test_a_run_killed_again_and_again_takes_the_same_steps_to_the_same_bits(tmp_path):
    killer = Killer(training_words(tmp_path), tmp_path, num_steps=120, seed=1)
    assert killer.interrupt(6) == set(Killer.kinds)


def test_fine_tuning_that_is_killed_again_and_again_takes_the_same_bits(tmp_path):
    Killer(fine_tuning_words(tmp_path), tmp_path, num_steps=80, seed=2).interrupt(4)
