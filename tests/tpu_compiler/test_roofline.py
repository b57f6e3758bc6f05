"""Roofline time of a step on a chip, and the largest batch that fits its memory."""

import pytest

from txl_tf.tpu_compiler.chips import Topology
from txl_tf.tpu_compiler.compiler import CompiledProgram
from txl_tf.tpu_compiler.roofline import Roofline, Trial, largest_rows


def program(**counts):
    return CompiledProgram(fits=True, needed_bytes=0, limit_bytes=0, **counts)


def test_the_slowest_resource_decides():
    topology = Topology.parse("v5e:4x4")
    arithmetic = Roofline.of(program(flops=197e12, hbm_bytes=10**9), topology)
    assert arithmetic.step_seconds == pytest.approx(1.0)
    memory = Roofline.of(program(flops=1e12, hbm_bytes=819 * 10**9), topology)
    assert memory.step_seconds == pytest.approx(1.0)


def test_two_replicas_share_the_peaks_of_their_chip():
    one = Roofline.of(program(flops=123e12 / 2, hbm_bytes=450 * 10**9), Topology.parse("v3:2x2"))
    assert one.flop_seconds == pytest.approx(1.0)
    assert one.hbm_seconds == pytest.approx(1.0)


def test_all_reduce_passes_the_links_almost_twice_and_not_at_all_on_one_chip():
    counts = program(all_reduce_bytes=10**9)
    ring = Roofline.of(counts, Topology.parse("v5e:4x4"))
    assert ring.all_reduce_seconds == pytest.approx(2 * 15 / 16 * 1e9 / 200e9)
    assert Roofline.of(counts, Topology.parse("v5e:1x1")).all_reduce_seconds == 0.0


LIMIT = 1000


def search(fixed, per_row, first, step=1, tells_memory=True, bend=0.0):
    """Trials on a program that takes `fixed + per_row * rows` bytes."""

    def attempt(rows):
        needed = int(fixed + per_row * rows + bend * rows * rows)
        return Trial(rows, needed <= LIMIT, needed if tells_memory else 0, LIMIT)

    return largest_rows(attempt, attempt(first), step, max_rows=64)


def best(trials):
    return max((trial.num_rows for trial in trials if trial.fits), default=0)


@pytest.mark.parametrize("first", [1, 8, 20, 64])
@pytest.mark.parametrize(
    ("fixed", "per_row", "expected"), [(100, 50, 18), (900, 10, 10), (0, 999, 1), (990, 1, 10)]
)
def test_largest_is_found_from_any_start(fixed, per_row, expected, first):
    trials = search(fixed, per_row, first)
    assert best(trials) == expected
    assert len(trials) <= 5
    assert len({trial.num_rows for trial in trials}) == len(trials)


def test_memory_that_does_not_grow_on_a_line_is_found_too():
    trials = search(100, 10, first=40, bend=0.9)
    assert best(trials) == 26
    assert len(trials) <= 7


def test_a_compiler_that_only_says_no_is_halved():
    assert best(search(100, 50, first=40, tells_memory=False)) == 18


def test_nothing_fits_where_a_single_row_does_not():
    trials = search(1200, 1, first=8)
    assert best(trials) == 0
    assert min(trial.num_rows for trial in trials) == 1


def test_rows_are_whole_parts_of_an_accumulated_step():
    trials = search(100, 50, first=8, step=4)
    assert best(trials) == 16
    assert all(trial.num_rows % 4 == 0 for trial in trials)


def test_the_search_ends_at_the_most_rows():
    assert best(search(0, 1, first=2)) == 64
