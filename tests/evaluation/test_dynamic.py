"""Weights that follow the text, compared with the rule written out."""

import numpy as np
import pytest
import tensorflow as tf

from tests.evaluation.evaluators import evaluator_of, nats_of
from tests.small_models import text_of, toy_experiment, toy_tokens
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.models.transformer_xl import TransformerXL

CONFIG = toy_experiment().model
TOKENS = toy_tokens(48)
TEXT = text_of(TOKENS)
RATE, DECAY = 0.3, 0.2
RULE = {"batch_size": 1, "dynamic_learning_rate": RATE, "dynamic_decay": DECAY}


@pytest.fixture(scope="module")
def model():
    return TransformerXL(CONFIG)


def nats_by_hand(model):
    follower = TransformerXL(CONFIG)
    follower.set_weights(model.get_weights())
    variables = follower.trainable_variables
    trained = [each.numpy() for each in variables]
    memory, nats = follower.initial_memory(1), [[np.nan]]
    for first in range(0, len(TOKENS) - 1, CONFIG.segment_length):
        segment = TOKENS[None, first : first + CONFIG.segment_length + 1]
        with tf.GradientTape() as tape:
            nll, memory = follower.score(segment[:, :-1], segment[:, 1:], memory)
            loss = tf.reduce_mean(nll)
        gradients = tape.gradient(loss, [each.value for each in variables])
        for variable, before, gradient in zip(variables, trained, gradients, strict=True):
            value = variable.numpy()
            variable.assign(
                value - RATE * tf.convert_to_tensor(gradient) + DECAY * (before - value)
            )
        nats.append(nll.numpy()[0])
    return np.concatenate(nats)


def test_each_segment_is_scored_before_it_is_learned_from(model):
    expected, evaluator = nats_by_hand(model), evaluator_of(model, **RULE)
    _, nats = nats_of(evaluator, TEXT)
    np.testing.assert_allclose(nats, expected, rtol=2e-4)
    # The weights make a difference, but only after the first segment.
    (_, fixed), first = nats_of(evaluator_of(model, batch_size=1), TEXT), CONFIG.segment_length + 1
    np.testing.assert_allclose(fixed[:first], expected[:first], rtol=1e-5)
    assert np.nanmax(np.abs(fixed - expected)[first:]) > 1e-2
    # Weights follow the text, so `max_tokens` keeps the beginning of the text.
    count = 2 * CONFIG.segment_length
    _, part = nats_of(evaluator, TEXT, max_tokens=count)
    np.testing.assert_allclose(part[: count + 1], nats[: count + 1], rtol=1e-5)
    assert np.isnan(part[count + 1 :]).all()


def test_a_text_begins_with_the_trained_weights(model):
    evaluator = evaluator_of(model, **RULE)
    first, second = (nats_of(evaluator, TEXT)[1] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_dynamic_evaluation_reads_one_row_on_one_device():
    with pytest.raises(ValueError, match="Received: batch_size=10"):
        EvaluationConfig(dynamic_learning_rate=0.1)
    with pytest.raises(ValueError, match="needs a `dynamic_learning_rate`"):
        EvaluationConfig(dynamic_decay=0.1)
