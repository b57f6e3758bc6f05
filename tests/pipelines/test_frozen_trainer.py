"""Real trainers that are frozen while their folder is taken away, and wake up."""

import random
import shutil
import signal

import pytest

from tests.pipelines.interrupted_run import InterruptedRun
from tests.pipelines.toy_run import digest_of

pytestmark = pytest.mark.slow
NUM_STEPS = 40
LOCKED = 73


@pytest.fixture(scope="module")
def folder(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frozen")
    InterruptedRun.set_up(server, folder)
    return folder


@pytest.fixture(scope="module")
def unbroken(server, folder):
    run = InterruptedRun(server, folder, "unbroken", NUM_STEPS)
    run.finish()
    return run


def test_a_frozen_trainer_that_wakes_up_after_another_began_anew_touches_nothing(
    server, folder, unbroken
):
    moment = random.Random(3).randrange(1, NUM_STEPS - 10)
    run = InterruptedRun(server, folder, "deleted", NUM_STEPS)
    frozen = run.start()
    assert frozen.wait_until(lambda: run.ledger_step() >= moment), frozen.output()
    frozen.send(signal.SIGSTOP)
    assert run.ledger_step() < NUM_STEPS
    shutil.rmtree(run.workdir)
    run.finish()
    before = digest_of(run.workdir)
    frozen.send(signal.SIGCONT)
    assert frozen.wait() == LOCKED, frozen.output()
    assert digest_of(run.workdir) == before
    run.check_same_as(unbroken)
    assert "the folder was removed, moved or replaced" in frozen.output()
    assert "Traceback" not in frozen.output()


def test_without_its_lock_file_a_run_is_still_locked(server, folder, unbroken):
    run = InterruptedRun(server, folder, "unlocked", NUM_STEPS)
    first = run.start()
    assert first.wait_until(lambda: run.ledger_step() >= 1), first.output()
    first.send(signal.SIGSTOP)
    (run.workdir / ".lock").unlink()
    assert run.start().wait() == LOCKED
    first.send(signal.SIGCONT)
    assert first.wait() == 0, first.output()
    run.check_same_as(unbroken)
