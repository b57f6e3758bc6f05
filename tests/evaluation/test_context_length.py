"""Effective memory length, and relative effective context length (RECL) of a model group."""

import math

import numpy as np
import pytest

from txl_tf.evaluation.context import ModelGroup, effective_memory_length

PERPLEXITIES = {10: 20.0, 20: 18.0, 30: 17.9, 40: 17.89, 50: 15.0}


@pytest.mark.parametrize(
    ("threshold", "length", "measured", "is_lower_bound"),
    [
        # From 30 to 40 it is 0.056 %; what comes later is not looked at.
        (0.001, 30, [10, 20, 30, 40], False),
        (0.05, 20, [10, 20, 30], False),
        (0.2, 10, [10, 20], False),
        (0.0001, 50, [10, 20, 30, 40, 50], True),
    ],
)
def test_memory_grows_until_a_length_gains_too_little(threshold, length, measured, is_lower_bound):
    asked = []

    def perplexity_of(memory_length):
        asked.append(memory_length)
        return PERPLEXITIES[memory_length]

    found, perplexities = effective_memory_length(PERPLEXITIES, perplexity_of, threshold)
    assert (found.length, found.is_lower_bound) == (length, is_lower_bound)
    assert asked == measured
    assert perplexities == {each: PERPLEXITIES[each] for each in measured}


LONG, BRIEF = 0, 1
# By model, context length and token, in bits.
BITS = np.array(
    [
        [[4, 2, 6, 1], [4, 1, 3, 1], [3, 1, 2, 1], [3, 1, 2, 1]],
        [[6, 1, 4, 2], [5, 3, 4, 0], [5, 3, 4, 0], [5, 3, 4, 0]],
    ]
)
CONTEXTS = (10, 20, 30, 40)


def bits(value):
    return value * math.log(2.0)


@pytest.fixture(scope="module")
def group():
    return ModelGroup(CONTEXTS, bits(BITS))


def recl(group, model, ratio, **changes):
    return group.relative_effective_context_length(
        model, **{"ratio": ratio, "step_size": 10, **changes}
    )


@pytest.mark.parametrize(
    ("model", "short", "long", "ratio", "loss"),
    [
        # Hard tokens 0 and 2 of the baseline 4 1 4 1.
        (LONG, 10, 10, 0.5, 4.0),
        (BRIEF, 10, 10, 0.5, 4.0),
        (LONG, 10, 20, 0.5, 3.5),  # (min(4, 4) + min(4, 3)) / 2
        (BRIEF, 10, 20, 0.5, 4.0),  # (min(4, 5) + min(4, 4)) / 2
        (LONG, 10, 30, 0.5, 2.5),  # (min(4, 3) + min(4, 2)) / 2
        (LONG, 20, 30, 0.5, 2.5),
        (LONG, 10, 20, 1.0, 2.25),  # (4 + 1 + 3 + 1) / 4
        (BRIEF, 10, 20, 1.0, 2.25),  # (4 + 1 + 4 + 0) / 4
        (BRIEF, 20, 30, 1.0, 2.0),  # (4 + 1 + 3 + 0) / 4
        (LONG, 10, 20, 0.1, 4.0),  # min(4, 4)
    ],
)
def test_relative_loss_and_gains(group, model, short, long, ratio, loss):
    before = {(10, 0.5): 4.0, (20, 0.5): 3.5, (10, 1.0): 2.5, (20, 1.0): 2.0, (10, 0.1): 4.0}
    before = 2.0 ** before[short, ratio]
    arguments = (model, short, long, ratio)
    assert group.relative_loss(*arguments) == pytest.approx(bits(loss), rel=1e-14)
    assert group.perplexity_gain(*arguments) == pytest.approx(before - 2.0**loss, abs=1e-12)
    assert group.relative_gain(*arguments) == pytest.approx(1.0 - 2.0**loss / before, abs=1e-14)


@pytest.mark.parametrize(
    ("model", "ratio", "length", "gains"),
    [
        (LONG, 0.1, 10, [0.0]),
        (LONG, 0.5, 30, [1 - 2**-0.5, 0.5, 0.0]),
        (LONG, 1.0, 30, [1 - 2**-0.25, 1 - 2**-0.5, 0.0]),
        (BRIEF, 0.1, 10, [0.0]),
        (BRIEF, 0.5, 10, [0.0]),
        (BRIEF, 1.0, 20, [1 - 2**-0.25, 0.0]),
    ],
)
def test_the_context_grows_until_a_step_gains_too_little(group, model, ratio, length, gains):
    assert recl(group, model, ratio) == (length, False)
    steps = [(10, 20), (20, 30), (30, 40)][: len(gains)]
    found = [group.relative_gain(model, *step, ratio) for step in steps]
    assert found == pytest.approx(gains, abs=1e-14)


def test_a_gain_of_the_threshold_goes_on_and_less_does_not(group):
    gain = group.relative_gain(BRIEF, 10, 20, 1.0)
    assert recl(group, BRIEF, 1.0, threshold=gain).length == 20
    assert recl(group, BRIEF, 1.0, threshold=math.nextafter(gain, 1.0)).length == 10


def test_the_end_of_what_was_measured_is_a_lower_bound():
    group = ModelGroup(CONTEXTS[:3], bits(BITS[:, :3]))
    assert recl(group, LONG, 1.0) == (30, True)


def test_the_group_decides_and_not_the_model_alone(group):
    alone = ModelGroup(CONTEXTS, bits(BITS[BRIEF:]))
    # Alone, token 2 is the second hardest; the other model's 3 bits make it easier.
    assert alone.relative_gain(0, 10, 20, 0.5) > 0.0
    assert group.relative_gain(BRIEF, 10, 20, 0.5) == 0.0
