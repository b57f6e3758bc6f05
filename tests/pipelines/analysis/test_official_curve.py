"""The comparison with the official curve reads what the official code reads."""

import numpy as np
import pytest

from tests.measurements.measure_official_curve import compared, rows_of_text, training_curve
from tests.pipelines.analysis.official_draws import unpacked_masks
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.training.ledger_lines import LedgerLine


def test_every_row_reads_its_sixteenth_of_the_text_in_order():
    num_rows, length, num_steps = 16, 8, 25
    # Longer than what is read, and not a multiple of anything.
    text = np.random.default_rng(0).integers(0, 256, 5003).astype(np.uint8).tobytes()
    stream = rows_of_text(text, num_rows, num_steps * length)
    plan = SegmentPlan(num_tokens=len(stream), num_rows=num_rows, segment_length=length)
    assert plan.segments_per_epoch == num_steps
    share = len(text) // num_rows
    for step in range(num_steps):
        for row, start in enumerate(plan.positions(step)):
            official = row * share + step * length
            assert stream[start : start + length] == text[official : official + length]
            # Targets too, but the very last.
            num_same = length - (step == num_steps - 1)
            own = stream[start + 1 : start + 1 + num_same]
            assert own == text[official + 1 : official + 1 + num_same]


def test_the_curve_has_a_mean_for_every_hundred_steps(tmp_path):
    losses = np.arange(250, dtype=np.float32)
    lines = [
        LedgerLine(step, np.arange(2), 0, loss, 1.0, "applied")
        for step, loss in enumerate(losses, start=1)
    ]
    path = tmp_path / "ledger.txt"
    path.write_text("\n".join(["txl ledger format=1 first=1", *map(str, lines)]) + "\n")
    assert training_curve(path) == pytest.approx([49.5, 149.5, 224.5])


@pytest.mark.parametrize(
    ("ours", "is_within", "is_within_two_deviations"),
    [([2.0, 2.2], True, True), ([3.5], False, True), ([4.5], False, False)],
)
def test_our_mean_is_held_against_the_spread_of_the_official_seeds(
    ours, is_within, is_within_two_deviations
):
    figures = compared([1.0, 2.0, 3.0], ours)
    assert figures["is_within"] == is_within
    assert figures["is_within_two_deviations"] == is_within_two_deviations
    assert figures["difference"] == pytest.approx(np.mean(ours) - 2.0)


def test_masks_come_in_the_order_in_which_they_were_drawn():
    num_steps, num_rows, width = 3, 2, 4
    random = np.random.default_rng(0)
    states = random.random((num_steps, num_rows, width)) < 0.5
    positions = random.random((5, 8)) < 0.5
    bits = np.concatenate([states.reshape(-1), positions.reshape(-1)])
    packed = np.packbits(bits, bitorder="little").reshape(num_rows, -1)
    first, second = unpacked_masks(packed, [states.shape, positions.shape])
    np.testing.assert_array_equal(first, states.swapaxes(0, 1))
    np.testing.assert_array_equal(second, positions)
