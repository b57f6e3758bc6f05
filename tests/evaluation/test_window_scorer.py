"""Both ways to score a token give the same nats where they see the same text."""

import keras
import numpy as np
import pytest

from tests.layer_checks import randomize_weights
from txl_tf.config.model_config import ModelConfig
from txl_tf.evaluation.window_scorer import WindowScorer, without_memory
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.transformer_xl import TransformerXL

CONFIG = ModelConfig(
    vocabulary_size=11,
    num_layers=2,
    hidden_dim=8,
    num_heads=2,
    head_dim=4,
    intermediate_dim=12,
    segment_length=3,
    memory_length=9,
    share_attention_biases=True,
)
TOKENS = np.random.default_rng(1).integers(0, 11, (2, 10)).astype("int32")


def create_model(config):
    keras.utils.set_random_seed(3)
    model = TransformerXL(config)
    randomize_weights(model)
    return model


@pytest.mark.parametrize("jit_compile", [True, False])
def test_a_window_of_everything_scores_like_a_memory_of_everything(jit_compile):
    model = create_model(CONFIG)
    by_window, engine = WindowScorer(model, jit_compile), InferenceEngine(model)
    by_segment, _ = engine.score(TOKENS[:, :-1], TOKENS[:, 1:], engine.initial_memory(2))
    for length in (3, 9):
        nll = by_window(TOKENS[:, :length], TOKENS[:, length])
        np.testing.assert_allclose(nll, by_segment[:, length - 1], atol=1e-5)


def test_the_model_without_memory_is_scored_by_its_last_position():
    config = without_memory(CONFIG, window_length=6)
    assert (config.position_encoding, config.num_positions) == ("learned", 6)
    assert not config.recurrence and config.num_layers == CONFIG.num_layers
    model = create_model(config)
    score = WindowScorer(model, jit_compile=False)
    for first in range(3):
        window = TOKENS[:, first : first + 7]
        nll, _ = model.score(window[:, :-1], window[:, 1:], model.initial_memory(2))
        np.testing.assert_allclose(score(window[:, :-1], window[:, -1]), nll[:, -1], atol=1e-6)
