"""Runs of a study go on side by side, and all of them stop when they are asked to."""

import signal
import sys
import threading
import time

import pytest

from pipelines.analysis.ablation_runs import AblationProcesses
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import PreemptedError

# Tells when it has begun, then waits to be asked to stop.
PATIENT = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[1], "saved").touch(), sys.exit(75)))
pathlib.Path(sys.argv[1], "begun").touch()
time.sleep(60)
"""


def processes_of(programs, folder, num_jobs, watcher):
    def command(name):
        return [sys.executable, "-c", programs[name], str(folder / name)]

    return AblationProcesses(command, folder, num_jobs, watcher)


def test_a_run_that_fails_is_named_and_keeps_no_other_from_its_end(tmp_path):
    programs = {
        "good": "print('fine')",
        "bad": "import sys; print('txl: Something is wrong.', file=sys.stderr); sys.exit(65)",
        "late": "print('fine too')",
    }
    with PreemptionWatcher(watch_metadata=False) as watcher:
        ended = dict(processes_of(programs, tmp_path, 1, watcher).run([*programs]))
    assert list(ended) == ["good", "bad", "late"]
    assert ended["good"] is None
    assert ended["late"] is None
    assert ended["bad"].exit_code == 65
    assert "Something is wrong." in ended["bad"].what
    assert (tmp_path / "late" / "log.txt").read_text() == "fine too\n"


def test_no_more_run_side_by_side_than_there_are_jobs(tmp_path):
    (tmp_path / "running").mkdir()
    program = f"""
import os, pathlib, time
own = pathlib.Path({str(tmp_path / "running")!r}, str(os.getpid()))
own.touch()
time.sleep(0.3)
print(len(list(own.parent.iterdir())))
own.unlink()
"""
    programs = dict.fromkeys("abcd", program)
    with PreemptionWatcher(watch_metadata=False) as watcher:
        ended = list(processes_of(programs, tmp_path, 2, watcher).run([*programs]))
    assert len(ended) == 4
    counts = [int((tmp_path / name / "log.txt").read_text()) for name in programs]
    assert max(counts) <= 2


@pytest.mark.parametrize("is_notice", [True, False])
def test_a_stop_reaches_all_that_run_and_begins_no_other(tmp_path, is_notice):
    """The notice of this process, or one that came to one of the others only."""
    programs = {"first": PATIENT, "second": PATIENT, "third": PATIENT}
    with PreemptionWatcher(watch_metadata=False) as watcher:
        processes = processes_of(programs, tmp_path, 2, watcher)

        def stop():
            begun = [tmp_path / name / "begun" for name in ("first", "second")]
            while not all(path.exists() for path in begun):
                time.sleep(0.01)
            if is_notice:
                signal.raise_signal(signal.SIGTERM)
            else:
                processes._running["first"].terminate()

        thread = threading.Thread(target=stop)
        thread.start()
        with pytest.raises(PreemptedError, match="The study was stopped"):
            list(processes.run([*programs]))
        thread.join()
    assert (tmp_path / "first" / "saved").exists()
    assert (tmp_path / "second" / "saved").exists()
    assert not (tmp_path / "third").exists()
