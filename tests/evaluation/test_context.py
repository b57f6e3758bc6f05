"""Losses with bounded contexts, and RECL of a model group."""

import math

import numpy as np
import pytest

from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.context import ContextLosses, ModelGroup
from txl_tf.models import create_model

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


V, T = 11, 4
COMMON = {
    "vocabulary_size": V,
    "num_layers": 2,
    "hidden_dim": 8,
    "segment_length": T,
    "initializer_stddev": 0.5,
}
ATTENTION = {**COMMON, "num_heads": 2, "head_dim": 4, "intermediate_dim": 12}
CONFIGS = {
    "recurrence": ModelConfig(**ATTENTION, memory_length=3),
    "long memory": ModelConfig(**ATTENTION, memory_length=20),
    "no recurrence": ModelConfig(
        **ATTENTION, memory_length=0, recurrence=False, position_encoding="sinusoidal"
    ),
    "lstm": LSTMConfig(**COMMON),
    "qrnn": QRNNConfig(**COMMON),
}
LENGTHS = (1, T, 10)


def windows_of(context, count=5):
    return np.random.default_rng(context).integers(0, V, (count, context + 1))


@pytest.fixture(scope="module", params=CONFIGS)
def measured(request):
    """The name of a model, the model, and what measures it."""
    model = create_model(CONFIGS[request.param])
    return request.param, model, ContextLosses(model, batch_size=2)


def test_a_window_is_read_from_an_empty_memory(measured):
    name, model, losses_of = measured
    for context in LENGTHS:
        windows = windows_of(context)
        memory = model.initial_memory(len(windows), **memory_length_of(name))
        start = 0
        for stop in cuts_of(name, context):
            nll, memory = model.score(
                windows[:, start:stop], windows[:, start + 1 : stop + 1], memory
            )
            start = stop
        np.testing.assert_allclose(losses_of(windows), nll[:, -1], rtol=1e-4, atol=1e-5)


def cuts_of(name, context):
    if name == "recurrence":
        # 10 tokens are read as 2, 4 and 4: the last segment is full.
        return {1: [1], T: [T], 10: [2, 6, 10]}[context]
    return [context]  # one segment: all else is only another way to compute it


def memory_length_of(name):
    return {"memory_length": 0} if name == "long memory" else {}


def test_a_loss_that_is_not_finite_is_an_error():
    model = create_model(CONFIGS["qrnn"])
    model.weights[0].assign(np.full(model.weights[0].shape, np.nan))
    with pytest.raises(NonFiniteError, match="context length 3"):
        ContextLosses(model, batch_size=2)(windows_of(3))


def test_a_model_reads_no_farther_than_it_has_learned_positions():
    positions = {"position_encoding": "learned", "num_positions": T}
    config = ModelConfig(**ATTENTION, memory_length=0, recurrence=False, **positions)
    losses_of = ContextLosses(create_model(config), batch_size=2)
    windows = windows_of(2 * T)
    np.testing.assert_array_equal(losses_of(windows), losses_of(windows[:, T:]))
    assert np.all(losses_of(windows) != losses_of(windows[:, T + 1 :]))
