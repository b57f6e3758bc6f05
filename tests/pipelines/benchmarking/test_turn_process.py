import sys
import textwrap

import pytest

from pipelines.benchmarking.turn_process import TurnProcess
from txl_tf.errors import JobError


@pytest.fixture
def start(tmp_path):
    def run(source, **request):
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(source))
        return TurnProcess.of_program("somebody", sys.executable, path, request, SEEN="7")

    return run


COUNTING = """
    import os, time

    def create(request):
        print("said while it starts")
        total = 0
        def turn(count):
            nonlocal total
            print("said by a library")
            os.write(1, b"said below Python")
            time.sleep(0.01 * count)
            total += count
            return {"tokens": total * request["factor"], "seen": os.environ["SEEN"]}
        return turn
"""


def test_work_is_done_so_many_times_and_what_is_printed_does_not_disturb(start):
    with start(COUNTING, factor=10) as process:
        assert 0.0 < process.ready_seconds < 60.0
        first, second = process.turn(3), process.turn(2)
    assert (first["tokens"], second["tokens"], first["seen"]) == (30, 50, "7")
    assert 0.03 <= first["seconds"] < 10.0
    assert 1 << 20 < first["peak_bytes"] <= second["peak_bytes"] < 1 << 30


def test_the_peak_stays_when_the_memory_is_given_back(start):
    source = """
        def create(request):
            def turn(count):
                taken = bytearray(count << 20)
                return {"tokens": len(taken)}
            return turn
    """
    with start(source) as process:
        before, most, after = (process.turn(count)["peak_bytes"] for count in (1, 200, 1))
    assert most - before > 150 << 20
    assert after == most


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("import no_such_package", "No module named 'no_such_package'"),
        ("def create(request): raise ValueError('not of this size')", "not of this size"),
    ],
)
def test_a_program_that_cannot_begin_is_an_error_with_its_last_line(start, source, word):
    with pytest.raises(JobError, match=f"somebody ended with exit code 1: .*{word}"):
        start(source)


def test_one_that_ends_in_a_turn_is_an_error(start):
    source = "import os\ndef create(request): return lambda count: os._exit(count)"
    with (
        start(source) as process,
        pytest.raises(JobError, match="exit code 3: it said nothing"),
    ):
        process.turn(3)


def test_what_is_no_python_is_an_error(tmp_path):
    program = tmp_path / "program.py"
    with pytest.raises(JobError, match="cannot be started"):
        TurnProcess.of_program("somebody", str(tmp_path), program, {})
    with pytest.raises(JobError, match="answered '-W ignore"):
        TurnProcess.of_program("somebody", "/bin/echo", program, {})
