"""Multi-head attention over segment and memory; absolute and Shaw position encodings."""

import itertools

import numpy as np
import pytest
from keras import ops

from tests import reference_variants
from tests.layer_checks import built, check_layer, random, randomize_weights
from tests.reference import max_difference
from txl_tf import functional
from txl_tf.layers.attention import AbsoluteAttention, ShawAttention, TwoTermShawAttention

B, D, N, H = 2, 6, 2, 4


@pytest.fixture(scope="module")
def layer():
    return built(AbsoluteAttention(N, H), D)


def attend(layer, inputs, memory, valid_length=None, **mask):
    if valid_length is not None:
        valid_length = ops.convert_to_tensor(valid_length, "int32")
    allowed = functional.causal_memory_mask(inputs.shape[1], memory.shape[1], valid_length, **mask)
    return layer(inputs, memory=memory, attention_mask=allowed)


@pytest.mark.parametrize(
    ("layer_class", "sizes", "num_weights"),
    # As many distances as there are, or the gradient of the rest would be 0.
    [
        (AbsoluteAttention, {}, 4),
        (ShawAttention, {"num_positions": 4}, 7),
        (TwoTermShawAttention, {"num_positions": 4}, 5),
    ],
)
def test_basics(layer_class, sizes, num_weights):
    inputs = {"inputs": random(B, 4, D), "memory": random(B, 3, D, seed=1)}
    mask = np.tril(np.ones((1, 1, 4, 7), bool), 3)
    check_layer(
        layer_class,
        init_kwargs={"num_heads": N, "head_dim": H, "dropout": 0.1, **sizes},
        inputs={**inputs, "attention_mask": mask},
        expected_output_shape=(B, 4, D),
        num_weights=num_weights,
        batched=("inputs", "memory"),
    )


def require_oracle(layer, segment_length, memory_length):
    inputs, memory = random(B, segment_length, D), random(B, memory_length, D, seed=1)
    weights = reference_variants.attention_weights(layer)
    masks = [{}, {"same_length": True}]
    if memory_length:
        masks.append({"same_length": True, "same_length_keys": "memory"})
    for valid_length, mask in itertools.product((None, [memory_length, 0]), masks):
        options = {"valid_length": valid_length, **mask}
        outputs = attend(layer, inputs, memory, **options)
        expected = reference_variants.attention(inputs, memory, weights, **options)
        assert max_difference(outputs, expected) <= 1e-5, options


@pytest.mark.parametrize("memory_length", [0, 1, 8])
@pytest.mark.parametrize("segment_length", [1, 5])
def test_absolute_attention_matches_the_oracle(layer, segment_length, memory_length):
    require_oracle(layer, segment_length, memory_length)


def test_probabilities_are_what_the_call_reads_with(layer):
    inputs, memory = random(B, 4, D), random(B, 3, D, seed=1)
    mask = functional.causal_memory_mask(4, 3)
    probabilities = ops.convert_to_numpy(layer(inputs, memory, mask, return_probabilities=True))
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, atol=1e-6)
    assert not np.any(probabilities[~np.broadcast_to(mask, probabilities.shape)])
    values = np.concatenate([memory, inputs], axis=1) @ ops.convert_to_numpy(layer.value.kernel)
    values = values.reshape(B, 7, N, H)
    read = np.einsum("bntk,bknh->btnh", probabilities, values).reshape(B, 4, N * H)
    expected = read @ ops.convert_to_numpy(layer.output_projection.kernel)
    assert max_difference(attend(layer, inputs, memory), expected) <= 1e-6


def made(num_positions, seed=7, layer_class=ShawAttention):
    layer = layer_class(N, H, num_positions)
    layer.build((None, None, D))
    randomize_weights(layer, seed=seed)
    return layer


@pytest.mark.parametrize("num_positions", [3, 20])
@pytest.mark.parametrize("memory_length", [0, 5])
@pytest.mark.parametrize("segment_length", [1, 5])
def test_matches_the_oracle(segment_length, memory_length, num_positions):
    require_oracle(made(num_positions), segment_length, memory_length)
