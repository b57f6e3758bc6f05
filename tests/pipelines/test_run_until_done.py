"""The script that runs a job again: which codes, how often, and what a stop does."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import pipelines.launch

RUN_UNTIL_DONE = str(Path(pipelines.launch.__file__).with_name("run_until_done.sh"))


def run_until_done(program, tmp_path, **environment):
    """Starts the script with a child of a few lines of shell."""
    # A shell starts background jobs with the signal ignored, and no child can undo that. A
    # handler of Python becomes the default action in a child. `preexec_fn` would fork with
    # gRPC's threads at work, and a child of such a fork may abort.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            ["sh", RUN_UNTIL_DONE, "sh", "-c", program],
            cwd=tmp_path,
            env={**os.environ, "TXL_PAUSE_SECONDS": "0", **environment},
            stderr=subprocess.DEVNULL,
        )
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("program", "code", "runs"),
    [
        ("exit 70", 70, 1),
        ("kill -KILL $$", 137, 3),
        # Hosts that were taken away may not be back yet; at the first start none is awaited.
        ("exit 66", 66, 1),
        ("case $(wc -l < log) in 1|4) exit 75;; 2|3|5|6) exit 66;; esac", 0, 7),
    ],
)
def test_what_is_run_again_and_how_often(program, code, runs, tmp_path):
    process = run_until_done(f"echo run >> log; {program}", tmp_path, TXL_MAX_CRASHES="2")
    assert process.wait(timeout=30) == code
    assert len((tmp_path / "log").read_text().splitlines()) == runs


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 0)])
def test_a_stopped_job_may_save_and_is_not_run_again(number, code, tmp_path):
    saving = f"trap 'sleep 0.1; echo saved >> log; exit {code}' TERM"
    program = f"{saving}; echo run >> log; while :; do sleep 0.02; done"
    process = run_until_done(program, tmp_path)
    wait_for(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text())
    process.send_signal(number)
    assert process.wait(timeout=30) == code
    assert (tmp_path / "log").read_text().split() == ["run", "saved"]


def test_a_stop_between_two_runs_ends_the_pause(tmp_path):
    process = run_until_done("echo run >> log; exit 75", tmp_path, TXL_PAUSE_SECONDS="60")
    wait_for(lambda: (tmp_path / "log").exists())
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 75
    assert (tmp_path / "log").read_text().split() == ["run"]


def wait_for(is_there):
    end = time.monotonic() + 20
    while not is_there():
        assert time.monotonic() < end
        time.sleep(0.01)
