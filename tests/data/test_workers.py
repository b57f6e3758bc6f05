"""Processes that encode text: order, errors and their end."""

import os
import signal
import subprocess
import sys
import time

import pytest

from txl_tf.data.workers import ordered_workers
from txl_tf.errors import DataDamagedError, StorageError


def double(item):
    # The first items take longest, so that the right order is no accident.
    time.sleep(max(0, 5 - item) / 100)
    return 2 * item


def process_id(item):
    return os.getpid()


def fail_at_three(item):
    if item == 3:
        raise DataDamagedError("what", where="where", remedy="remedy")
    return item


def die(item):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_come_in_the_order_of_the_items(num_workers):
    with ordered_workers(double, num_workers) as workers:
        assert list(workers(range(12))) == [2 * item for item in range(12)]
        assert list(workers(range(5))) == [0, 2, 4, 6, 8]
        assert list(workers([])) == []


def test_items_are_read_as_results_are_taken():
    items_so_far = []

    def items():
        for item in range(1000):
            items_so_far.append(item)
            yield item

    with ordered_workers(str, 2) as workers:
        results = workers(items())
        next(results)
        assert len(items_so_far) < 20
        assert len(list(results)) == 999


@pytest.mark.parametrize("num_workers", [1, 2])
def test_errors_of_the_work_and_of_the_items_come_through(num_workers):
    def items():
        yield 1
        raise LookupError("no more")

    with ordered_workers(fail_at_three, num_workers) as workers:
        with pytest.raises(DataDamagedError, match="what\nwhere\nremedy"):
            list(workers(range(100)))
        with pytest.raises(LookupError, match="no more"):
            list(workers(items()))


def test_a_killed_worker_is_an_error_and_not_a_wait():
    with (
        pytest.raises(StorageError, match="A worker process ended"),
        ordered_workers(die, 2) as workers,
    ):
        list(workers(range(100)))


KILLED = """
import os, signal
from tests.data.test_workers import process_id
from txl_tf.data.workers import ordered_workers

# A shell starts background jobs with it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with ordered_workers(process_id, 2) as workers:
    pids = set()
    while len(pids) < 2:  # both have begun, and ignore Ctrl-C
        pids.update(workers(range(40)))
    print(*pids, flush=True)
    os.kill({target}, signal.{name})
"""


# Ctrl-C reaches every process of the group.
@pytest.mark.parametrize(("name", "target"), [("SIGKILL", "os.getpid()"), ("SIGINT", "0")])
def test_workers_end_with_the_process_that_started_them(name, target):
    program = KILLED.format(name=name, target=target)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, start_new_session=True
    )
    assert done.returncode == -getattr(signal, name)
    assert done.stderr.count(b"Traceback") == (name == "SIGINT"), done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert pids
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
