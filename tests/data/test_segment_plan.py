"""Which tokens a step reads: every segment once an epoch, each row where it stopped."""

import numpy as np
import pytest

from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.errors import DataDamagedError


def random_plans(count, rotate):
    random = np.random.default_rng(7)
    for _ in range(count):
        rows, length = (int(value) for value in random.integers(1, 9, 2))
        tokens = rows * length + 1 + int(random.integers(0, 20 * rows * length))
        yield SegmentPlan(
            num_tokens=tokens,
            num_rows=rows,
            segment_length=length,
            seed=int(random.integers(100)),
            fingerprint="data",
            rotate=rotate,
        )


@pytest.mark.parametrize("rotate", [False, True])
def test_an_epoch_reads_every_segment_once_and_leaves_the_stated_tail(rotate):
    for plan in random_plans(60, rotate):
        for epoch in (0, 1, 5):
            steps = plan.steps_per_epoch
            positions = np.stack([plan.positions(epoch * steps + step) for step in range(steps)])
            shift = positions.min()
            expected = shift + np.arange(positions.size) * plan.segment_length
            np.testing.assert_array_equal(np.sort(positions, axis=None), expected)
            num_tokens = positions.size * plan.segment_length + 1
            assert num_tokens + plan.tail_tokens == plan.num_tokens
            assert shift >= 0 and shift + num_tokens <= plan.num_tokens
            assert plan.tail_tokens < plan.num_rows * plan.segment_length


@pytest.mark.parametrize("rotate", [False, True])
def test_a_segment_continues_the_last_one_or_starts(rotate):
    for plan in random_plans(60, rotate):
        breaks = 0
        for step in range(1, 3 * plan.steps_per_epoch):
            continues = plan.positions(step) == plan.positions(step - 1) + plan.segment_length
            np.testing.assert_array_equal(plan.starts(step), ~continues)
            if step % plan.steps_per_epoch:
                breaks += int(plan.starts(step).sum())
        # Inside an epoch only the one row that reads around the end restarts.
        assert breaks <= 3
        assert plan.starts(0).all()


def test_without_rotation_rows_are_consecutive_chunks():
    plan = SegmentPlan(num_tokens=100, num_rows=3, segment_length=8)
    assert (plan.steps_per_epoch, plan.tail_tokens) == (4, 3)
    positions = [plan.positions(step).tolist() for step in (0, 3, 4)]
    assert positions == [[0, 32, 64], [24, 56, 88], [0, 32, 64]]
    assert plan.positions(0).dtype == np.int64


def test_rotation_never_changes():
    plan = SegmentPlan(
        num_tokens=10_000, num_rows=4, segment_length=64, seed=3, fingerprint="abc", rotate=True
    )
    assert [plan.rotation(epoch) for epoch in range(3)] == [(1, 92), (7, 117), (13, 81)]
    assert plan.rotation(1) != SegmentPlan(**{**vars(plan), "seed": 4}).rotation(1)
    assert plan.rotation(1) != SegmentPlan(**{**vars(plan), "fingerprint": "abd"}).rotation(1)


def test_rotation_reaches_every_place():
    plan = SegmentPlan(num_tokens=24, num_rows=2, segment_length=4, rotate=True)
    assert (plan.tail_tokens, plan.num_segments) == (7, 4)
    places = {plan.rotation(epoch) for epoch in range(600)}
    assert places == {(shift, segment) for shift in range(8) for segment in range(4)}


def test_too_few_tokens_say_how_many_are_needed():
    SegmentPlan(num_tokens=33, num_rows=4, segment_length=8)
    for rotate in (False, True):
        with pytest.raises(DataDamagedError, match=r"too few tokens for one batch: 32(.|\n)*33"):
            SegmentPlan(num_tokens=32, num_rows=4, segment_length=8, rotate=rotate)
