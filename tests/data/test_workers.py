import os
import signal
import subprocess
import sys
import time

import pytest

from txl_tf.data.workers import OrderedWorkers
from txl_tf.errors import DataDamagedError, StorageError


def double(item):
    # The first ones take longest, so that order is nobody's accident.
    time.sleep(max(0, 5 - item) / 100)
    return 2 * item


def process_id(item):
    return os.getpid()


def fail_at_three(item):
    if item == 3:
        raise DataDamagedError("what", where="where", remedy="remedy")
    return item


def crash(item):
    raise LookupError("nothing here")


def die(item):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_come_in_order_and_functions_can_change(num_workers):
    with OrderedWorkers(num_workers) as workers:
        assert list(workers.map(double, range(12))) == [2 * item for item in range(12)]
        assert list(workers.map(str, range(5))) == list("01234")
        assert list(workers.map(str, [])) == []


def test_there_are_as_many_processes_as_there_is_work_for():
    with OrderedWorkers(1) as workers:
        assert set(workers.map(process_id, range(3))) == {os.getpid()}
    with OrderedWorkers(4) as workers:
        used = set(workers.map(process_id, range(2)))
        assert len(used) == 2
        assert os.getpid() not in used


def test_items_are_read_as_results_are_taken():
    read = []

    def items():
        for item in range(1000):
            read.append(item)
            yield item

    with OrderedWorkers(2) as workers:
        results = workers.map(str, items())
        next(results)
        time.sleep(0.2)
        assert len(read) < 20
        assert len(list(results)) == 999


def test_errors_of_the_work_come_through():
    for num_workers in (1, 2):
        with (
            pytest.raises(DataDamagedError, match="where") as caught,
            OrderedWorkers(num_workers) as workers,
        ):
            list(workers.map(fail_at_three, range(100)))
        assert (caught.value.where, caught.value.remedy) == ("where", "remedy")
    with (
        pytest.raises(RuntimeError, match="nothing here"),
        OrderedWorkers(2) as workers,
    ):
        list(workers.map(crash, range(3)))


def test_errors_of_the_items_come_through():
    def items():
        yield 1
        raise DataDamagedError("source failed")

    with pytest.raises(DataDamagedError, match="source failed"), OrderedWorkers(2) as workers:
        list(workers.map(str, items()))


def test_a_killed_worker_is_an_error_and_not_a_wait():
    with pytest.raises(StorageError, match="code -9"), OrderedWorkers(2) as workers:
        list(workers.map(die, range(100)))


KILLED = """
import os, signal
from tests.data.test_workers import process_id
from txl_tf.data.workers import OrderedWorkers

with OrderedWorkers(2) as workers:
    print(*set(workers.map(process_id, range(4))), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_the_process_that_started_them():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLED], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
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
