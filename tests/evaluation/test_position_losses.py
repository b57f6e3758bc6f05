"""Loss by position: what is summed where."""

import numpy as np
import pytest

from txl_tf.evaluation.position_losses import PositionLosses, doubling_positions


def test_means_are_those_of_a_loop():
    random = np.random.default_rng(0)
    starts, num_tokens = np.array([0, 5, 6, 40]), 70
    nats = random.random(num_tokens)
    firsts = [0, 1, 2, 8, 1000]
    sums = {first: [] for first in firsts}
    for place in range(1, num_tokens):
        position = place - max(start for start in starts if start <= place)
        sums[max(first for first in firsts if first <= position)].append(nats[place])
    losses = PositionLosses(starts, firsts)
    for part in np.array_split(random.permutation(np.arange(1, num_tokens)), 7):
        losses.add(part, nats[part])
    found = losses.result()
    assert [each.first for each in found] == [0, 1, 2, 8]
    assert [each.last for each in found] == [0, 1, 7, 999]
    for each in found:
        assert each.num_tokens == len(sums[each.first])
        assert each.nats_per_token == pytest.approx(np.mean(sums[each.first]))


def test_the_last_bucket_has_no_bound():
    losses = PositionLosses(np.array([0]), [0, 4])
    losses.add(np.array([1, 100]), np.array([2.0, 3.0]))
    assert [(each.first, each.last) for each in losses.result()] == [(0, 3), (4, None)]


@pytest.mark.parametrize(
    ("longest", "firsts"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (9, [0, 1, 2, 4, 8])]
)
def test_positions_double_as_far_as_there_are_any(longest, firsts):
    assert doubling_positions(longest) == firsts


@pytest.mark.parametrize("values", [[], [1, 2], [0, 3, 3], [0, 3, 2]])
def test_what_does_not_ascend_from_0_is_refused(values):
    with pytest.raises(ValueError, match="`firsts` must begin with 0 and ascend"):
        PositionLosses(np.array([0]), values)
    with pytest.raises(ValueError, match="`document_starts` must begin with 0 and ascend"):
        PositionLosses(np.array(values, int), [0])
