"""A token's loss depends on its window, on all of it and on nothing else."""

import numpy as np
import pytest

from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.qrnn_config import QRNNConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.context_losses import ContextLosses
from txl_tf.models.create_model import create_model

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


def test_every_token_of_the_window_counts(measured):
    _, _, losses_of = measured
    context = 2 * T
    windows = windows_of(context)
    before = losses_of(windows)
    for place in range(context):
        changed = windows.copy()
        changed[:, place] = (changed[:, place] + 1) % V
        assert np.all(losses_of(changed) != before), place


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
