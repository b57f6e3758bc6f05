"""Weights that follow the text, against the rule written out by hand."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.small_models import arrays_of
from tests.toy_batches import strategy_of, toy_experiment, toy_tokens
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.result import EvaluationText
from txl_tf.models.transformer_xl import TransformerXL

CONFIG = toy_experiment().model
TOKENS = toy_tokens(48)
TRAINING_TOKENS = toy_tokens(40, seed=9)
RULES = [
    {"dynamic_learning_rate": 0.3, "dynamic_decay": 0.2},
    {
        "dynamic_learning_rate": 0.003,
        "dynamic_decay": 0.2,
        "dynamic_statistics_segments": 3,
        "dynamic_epsilon": 1e-3,
    },
]


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1234)
    return TransformerXL(CONFIG)


def text_of(tokens):
    return EvaluationText.of_tokens(
        "text", tokens, num_bytes=len(tokens), num_characters=len(tokens), num_words=len(tokens)
    )


def evaluator_of(model, jit_compile=False, **options):
    config = EvaluationConfig(batch_size=1, **options)
    evaluator = Evaluator(CONFIG, config, jit_compile=jit_compile)
    evaluator.load_arrays(arrays_of(model))
    return evaluator


def nats_of(evaluator, tokens=TOKENS):
    nats = np.zeros(len(tokens))
    result = evaluator.evaluate(
        text_of(tokens),
        step=0,
        observe=functools.partial(np.put, nats),
        statistics_text=text_of(TRAINING_TOKENS),
    )
    assert result.total_nats == pytest.approx(nats.sum(), rel=1e-12)
    return nats


def segments_of(tokens):
    for first in range(0, len(tokens) - 1, CONFIG.segment_length):
        yield tokens[None, first : first + CONFIG.segment_length + 1]


def gradients_of(model, segment, memory):
    with tf.GradientTape() as tape:
        nll, memory = model.score(segment[:, :-1], segment[:, 1:], memory)
        loss = tf.reduce_mean(nll)
    weights = [variable.value for variable in model.trainable_variables]
    gradients = [np.asarray(tf.convert_to_tensor(each)) for each in tape.gradient(loss, weights)]
    return nll.numpy()[0], gradients, memory


def nats_by_hand(
    model,
    dynamic_learning_rate,
    dynamic_decay=0.0,
    dynamic_statistics_segments=None,
    dynamic_epsilon=None,
):
    follower = TransformerXL(CONFIG)
    follower.set_weights(model.get_weights())
    trained = [np.asarray(variable) for variable in model.trainable_variables]
    scales, factors = [1.0] * len(trained), [1.0] * len(trained)
    if dynamic_statistics_segments is not None:
        memory, squares = follower.initial_memory(1), []
        for _, segment in zip(range(3), segments_of(TRAINING_TOKENS), strict=False):
            _, gradients, memory = gradients_of(follower, segment, memory)
            squares.append([np.square(gradient) for gradient in gradients])
        roots = [np.sqrt(np.mean(each, axis=0)) for each in zip(*squares, strict=True)]
        mean = np.mean(np.concatenate([root.ravel() for root in roots]))
        scales = [root + dynamic_epsilon for root in roots]
        factors = [np.minimum(root / mean, 1.0 / dynamic_decay) for root in roots]
    memory, nats = follower.initial_memory(1), [[0.0]]
    for segment in segments_of(TOKENS):
        nll, gradients, memory = gradients_of(follower, segment, memory)
        nats.append(nll)
        parts = zip(follower.trainable_variables, trained, gradients, scales, factors, strict=True)
        for variable, before, gradient, scale, factor in parts:
            value = np.asarray(variable)
            step = -dynamic_learning_rate * gradient / scale
            variable.assign(value + step + dynamic_decay * factor * (before - value))
    return np.concatenate(nats)


@pytest.mark.parametrize("rule", [RULES[0], slow_case(RULES[1])])
def test_each_segment_is_scored_and_then_learned_from(model, rule):
    expected = nats_by_hand(model, **rule)
    found = nats_of(evaluator_of(model, jit_compile=rule is RULES[1], **rule))
    np.testing.assert_allclose(found, expected, rtol=2e-4)
    # It makes a difference, after the first segment only.
    fixed = nats_of(evaluator_of(model))
    first = CONFIG.segment_length + 1
    np.testing.assert_allclose(fixed[:first], expected[:first], rtol=1e-5)
    assert np.abs(fixed - expected)[first:].max() > 1e-2
    # Weights follow the text, so a part of it is its beginning.
    evaluator, count = evaluator_of(model, **RULES[0]), 2 * CONFIG.segment_length
    whole, part = nats_of(evaluator), np.zeros(len(TOKENS))
    evaluator.evaluate(text_of(TOKENS), step=0, observe=part.__setitem__, max_tokens=count)
    np.testing.assert_allclose(part[: count + 1], whole[: count + 1], rtol=1e-5)
    assert not part[count + 1 :].any()


def test_weights_are_put_back_after_an_error_too(model):
    evaluator = evaluator_of(model, dynamic_learning_rate=1.0)
    before = [np.array(variable) for variable in evaluator.model.weights]

    def track(batches, num_batches):
        for number, batch in enumerate(batches):
            if number == 3:
                raise KeyboardInterrupt
            yield batch

    with pytest.raises(KeyboardInterrupt):
        evaluator.evaluate(text_of(TOKENS), step=0, track=track)
    for variable, array in zip(evaluator.model.weights, before, strict=True):
        np.testing.assert_array_equal(np.asarray(variable), array)


def test_what_cannot_be_is_refused(model):
    with pytest.raises(ValueError, match="Received: batch_size=10"):
        EvaluationConfig(dynamic_learning_rate=0.1)
    with pytest.raises(ValueError, match="needs a `dynamic_learning_rate`"):
        EvaluationConfig(dynamic_decay=0.1)
    with pytest.raises(ValueError, match="needs `dynamic_statistics_segments`"):
        EvaluationConfig(batch_size=1, dynamic_learning_rate=0.1, dynamic_epsilon=0.1)
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        EvaluationConfig(batch_size=1, dynamic_learning_rate=0.1, dynamic_decay=1.5)
    with pytest.raises(ValueError, match="must be at least 0"):
        EvaluationConfig(warm_up_tokens=-1)
    config = EvaluationConfig(batch_size=1, dynamic_learning_rate=0.1)
    with pytest.raises(ValueError, match="on a single device"):
        Evaluator(CONFIG, config, strategy=strategy_of(2))
    scaled = evaluator_of(model, **RULES[1])
    with pytest.raises(ValueError, match="needs a `statistics_text`"):
        scaled.evaluate(text_of(TOKENS), step=0)
