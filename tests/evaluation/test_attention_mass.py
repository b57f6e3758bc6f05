"""The share of attention that goes to the memory, where it is known."""

import numpy as np
import pytest

from tests.evaluation.test_evaluator import text_of
from tests.toy_batches import strategy_of, toy_experiment, toy_tokens
from txl_tf.evaluation.attention import AttentionMass
from txl_tf.evaluation.evaluator import create_evaluation_model

T, M = 5, 7


def model_of(strategy=None, **changes):
    config = toy_experiment(model={"num_layers": 2, **changes}).model
    return create_evaluation_model(config, "float32", strategy)


def test_uniform_attention_gives_the_memory_its_share_of_the_keys():
    model = model_of(share_attention_biases=True)
    for block in model.blocks:
        block.attention.query.kernel.assign(np.zeros(block.attention.query.kernel.shape))
    for bias in (model.content_bias, model.position_bias):
        bias.assign(np.zeros(bias.shape))
    shares = AttentionMass(model)(text_of(toy_tokens(400)))
    # Query `t` sees the memory and `t + 1` tokens of its segment.
    np.testing.assert_allclose(shares, [np.mean([M / (M + t + 1) for t in range(T)])] * 2, 1e-5)
    # A short text fills the memory in part: two segments, so 5 of 7 positions.
    shares = AttentionMass(model)(text_of(toy_tokens(12)))
    np.testing.assert_allclose(shares, [np.mean([5 / (5 + t + 1) for t in range(T)])] * 2, 1e-5)
    assert AttentionMass(model)(text_of(toy_tokens(9))) is None


@pytest.mark.parametrize("num_replicas", [2])
def test_replicas_measure_what_one_device_does(num_replicas):
    strategy = strategy_of(num_replicas)
    alone, shared = model_of(), model_of(strategy)
    for source, target in zip(alone.weights, shared.weights, strict=True):
        target.assign(source.numpy())
    text = text_of(toy_tokens(400))
    expected = AttentionMass(alone)(text)
    assert len(set(expected)) == 2
    np.testing.assert_allclose(AttentionMass(shared, strategy)(text), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "is_possible"),
    [
        ({}, True),
        ({"recurrence": False, "memory_length": 0}, False),
        ({"position_encoding": "sinusoidal"}, False),
        ({"position_encoding": "shaw", "num_positions": 6}, True),
    ],
)
def test_only_relative_positions_and_a_memory_are_measured(changes, is_possible):
    config = toy_experiment(model=changes).model
    assert AttentionMass.is_possible(config) == is_possible
    if is_possible:
        assert AttentionMass(model_of(**changes))(text_of(toy_tokens(400)))
