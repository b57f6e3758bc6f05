"""State of replicas that are in two processes, as on two machines."""

import json
import subprocess
import sys

import pytest

from tests.distribution.two_workers import started

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found():
    """What each of the two workers found."""
    words = [sys.executable, "-m", "tests.distribution.two_workers"]
    workers = started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    outputs = [worker.communicate(timeout=120) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def test_two_processes_are_one_strategy_with_one_chief(found):
    assert [each["num_workers"] for each in found] == [2, 2]
    assert [each["num_replicas"] for each in found] == [2, 2]
    assert [each["is_chief"] for each in found] == [True, False]


def test_every_worker_has_its_own_rows_and_gathers_all_of_them_bit_for_bit(found):
    for each in found:
        assert each["begins_with_zeros"]
        assert each["is_returned"] == {
            "float32": True,
            "bfloat16": True,
            "int32": True,
            "bool": True,
        }
    # Four rows of two replicas, of which the last is made up.
    assert [each["own_rows"] for each in found] == [[2**31 - 1, -(2**31)], [7, 0]]
    assert [each["changed"] for each in found] == [[3.0, 7.0, 111.0]] * 2


def test_sigterm_is_noticed_although_tensorflow_has_a_handler_for_workers(found):
    assert [each["notices_sigterm"] for each in found] == ["the process received SIGTERM"] * 2
