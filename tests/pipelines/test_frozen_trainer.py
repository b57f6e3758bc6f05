"""A real trainer that is frozen while its folder is taken away, and wakes up."""

import shutil
import signal

import pytest

from tests.pipelines.interrupted_run import InterruptedRun
from tests.pipelines.toy_run import digest_of

NUM_STEPS = 40


@pytest.mark.slow
def test_a_frozen_trainer_that_wakes_up_after_another_began_anew_touches_nothing(server, tmp_path):
    InterruptedRun.set_up(server, tmp_path)
    run = InterruptedRun(server, tmp_path, "deleted", NUM_STEPS)
    frozen = run.start()
    assert frozen.wait_until(lambda: run.ledger_step() >= 8), frozen.output()
    frozen.send(signal.SIGSTOP)
    assert run.ledger_step() < NUM_STEPS
    shutil.rmtree(run.workdir)
    run.finish()
    before = digest_of(run.workdir)
    frozen.send(signal.SIGCONT)
    assert frozen.wait() == 73, frozen.output()
    assert digest_of(run.workdir) == before
    assert "the folder was removed, moved or replaced" in frozen.output()
    assert "Traceback" not in frozen.output()
