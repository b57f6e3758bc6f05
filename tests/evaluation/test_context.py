"""Losses by context length, and the effective context length of the models of a group."""

import math

import numpy as np
import pytest

from tests.small_models import small_config
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.context_losses import ContextLosses
from txl_tf.evaluation.effective_context import ModelGroup
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
GROUP = ModelGroup(CONTEXTS, BITS * math.log(2.0))


def recl(model, ratio, group=GROUP, **threshold):
    return group.relative_effective_context_length(model, ratio=ratio, step_size=10, **threshold)


@pytest.mark.parametrize(
    ("model", "short", "long", "ratio", "before", "loss"),
    [
        # Hard tokens 0 and 2 of the baseline 4 1 4 1.
        (LONG, 10, 10, 0.5, 4.0, 4.0),
        (LONG, 10, 20, 0.5, 4.0, 3.5),  # (min(4, 4) + min(4, 3)) / 2
        (BRIEF, 10, 20, 0.5, 4.0, 4.0),  # (min(4, 5) + min(4, 4)) / 2
        (LONG, 10, 30, 0.5, 4.0, 2.5),  # (min(4, 3) + min(4, 2)) / 2
        (LONG, 20, 30, 0.5, 3.5, 2.5),
        (LONG, 10, 20, 1.0, 2.5, 2.25),  # (4 + 1 + 3 + 1) / 4
        (BRIEF, 10, 20, 1.0, 2.5, 2.25),  # (4 + 1 + 4 + 0) / 4
        (BRIEF, 20, 30, 1.0, 2.0, 2.0),  # (4 + 1 + 3 + 0) / 4
        (LONG, 10, 20, 0.1, 4.0, 4.0),  # min(4, 4)
    ],
)
def test_losses_of_hard_tokens_and_gains_are_relative_to_the_group(
    model, short, long, ratio, before, loss
):
    arguments = (model, short, long, ratio)
    assert GROUP.relative_loss(*arguments) == pytest.approx(loss * math.log(2.0), rel=1e-14)
    gain = 1.0 - 2.0 ** (loss - before)
    assert GROUP.relative_gain(*arguments) == pytest.approx(gain, abs=1e-14)


def test_the_context_grows_until_a_step_gains_too_little():
    for model, lengths in ((LONG, {0.1: 10, 0.5: 30, 1.0: 30}), (BRIEF, {0.5: 10, 1.0: 20})):
        assert {ratio: recl(model, ratio) for ratio in lengths} == {
            ratio: (length, False) for ratio, length in lengths.items()
        }


def test_a_gain_of_the_threshold_is_enough_and_the_longest_context_a_lower_bound():
    gain = GROUP.relative_gain(BRIEF, 10, 20, 1.0)
    assert recl(BRIEF, 1.0, threshold=gain).length == 20
    assert recl(BRIEF, 1.0, threshold=math.nextafter(gain, 1.0)).length == 10
    shorter = ModelGroup(CONTEXTS[:3], BITS[:, :3] * math.log(2.0))
    assert recl(LONG, 1.0, shorter) == (30, True)


T = 4
WIDE = {"initializer_stddev": 0.5}
RECURRENT = {"vocabulary_size": 11, "num_layers": 2, "hidden_dim": 8, "segment_length": T, **WIDE}
WITHOUT_MEMORY = {"recurrence": False, **WIDE}
CONFIGS = {
    "short memory": small_config(T, 3, **WIDE),
    "long memory": small_config(T, 20, **WIDE),
    "no memory": small_config(T, 0, position_encoding="sinusoidal", **WITHOUT_MEMORY),
    "lstm": LSTMConfig(**RECURRENT),
    "qrnn": QRNNConfig(**RECURRENT),
}


def windows_of(context, count=5):
    return np.random.default_rng(context).integers(0, 11, (count, context + 1))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_window_is_read_from_an_empty_memory(name):
    model = create_model(CONFIGS[name])
    losses_of = ContextLosses(model, batch_size=2)
    for context in (1, T, 10):
        # 10 tokens are read as 2, 4 and 4, so the last segment is full. Segments do not matter if
        # the memory holds the whole window, or if there is no memory.
        cuts = [2, 6, 10] if (name, context) == ("short memory", 10) else [context]
        windows, start = windows_of(context), 0
        memory = model.initial_memory(5, **({"memory_length": 0} if name == "long memory" else {}))
        for stop in cuts:
            tokens, targets = windows[:, start:stop], windows[:, start + 1 : stop + 1]
            nll, memory = model.score(tokens, targets, memory)
            start = stop
        np.testing.assert_allclose(losses_of(windows), nll[:, -1], rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_not_finite_is_an_error():
    model = create_model(CONFIGS["qrnn"])
    model.weights[0].assign(np.full(model.weights[0].shape, np.nan))
    with pytest.raises(NonFiniteError, match="context length 3"):
        ContextLosses(model, batch_size=2)(windows_of(3))


def test_a_model_reads_no_farther_than_its_learned_positions():
    config = small_config(T, 0, position_encoding="learned", num_positions=T, **WITHOUT_MEMORY)
    losses_of, windows = ContextLosses(create_model(config), batch_size=2), windows_of(2 * T)
    np.testing.assert_array_equal(losses_of(windows), losses_of(windows[:, T:]))
    assert np.all(losses_of(windows) != losses_of(windows[:, T + 1 :]))
