"""Sliding-window scoring with a bounded context, for models without memory."""

import keras
import numpy as np
import pytest

from tests.layer_checks import randomize_weights
from tests.small_models import small_config
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.context import ContextLosses, WindowScorer, without_memory
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models import create_model
from txl_tf.models.transformer_xl import TransformerXL

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


CONFIG = small_config(3, 9, share_attention_biases=True)
TOKENS = np.random.default_rng(1).integers(0, 11, (2, 10)).astype("int32")


def create_model_of_window_scorer(config):
    keras.utils.set_random_seed(3)
    model = TransformerXL(config)
    randomize_weights(model)
    return model


@pytest.mark.parametrize("jit_compile", [True, False])
def test_a_window_of_everything_scores_like_a_memory_of_everything(jit_compile):
    model = create_model_of_window_scorer(CONFIG)
    by_window, engine = WindowScorer(model, jit_compile), InferenceEngine(model)
    by_segment, _ = engine.score(TOKENS[:, :-1], TOKENS[:, 1:], engine.initial_memory(2))
    for length in (3, 9):
        nll = by_window(TOKENS[:, :length], TOKENS[:, length])
        np.testing.assert_allclose(nll, by_segment[:, length - 1], atol=1e-5)


def test_the_model_without_memory_is_scored_by_its_last_position():
    config = without_memory(CONFIG, window_length=6)
    assert (config.position_encoding, config.num_positions) == ("learned", 6)
    assert not config.recurrence and config.num_layers == CONFIG.num_layers
    model = create_model_of_window_scorer(config)
    score = WindowScorer(model, jit_compile=False)
    for first in range(3):
        window = TOKENS[:, first : first + 7]
        nll, _ = model.score(window[:, :-1], window[:, 1:], model.initial_memory(2))
        np.testing.assert_allclose(score(window[:, :-1], window[:, -1]), nll[:, -1], atol=1e-6)
