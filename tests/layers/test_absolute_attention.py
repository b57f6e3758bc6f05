import itertools

import numpy as np
import pytest
from keras import ops

from tests import reference_variants
from tests.layer_checks import check_layer, randomize_weights
from tests.reference import max_difference
from txl_tf import functional
from txl_tf.layers.absolute_attention import AbsoluteAttention

B, D, N, H = 2, 6, 2, 4


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.fixture(scope="module")
def layer():
    layer = AbsoluteAttention(N, H)
    layer.build((None, None, D))
    randomize_weights(layer)
    return layer


def attend(layer, inputs, memory, valid_length=None, **mask):
    if valid_length is not None:
        valid_length = ops.convert_to_tensor(valid_length, "int32")
    allowed = functional.causal_memory_mask(inputs.shape[1], memory.shape[1], valid_length, **mask)
    return layer(inputs, memory=memory, attention_mask=allowed)


def test_basics():
    inputs = {"inputs": random(B, 4, D), "memory": random(B, 3, D, seed=1)}
    mask = np.tril(np.ones((1, 1, 4, 7), bool), 3)
    check_layer(
        AbsoluteAttention,
        init_kwargs={"num_heads": N, "head_dim": H, "dropout": 0.1},
        inputs={**inputs, "attention_mask": mask},
        expected_output_shape=(B, 4, D),
        num_weights=4,
        batched=("inputs", "memory"),
    )


@pytest.mark.parametrize("memory_length", [0, 1, 5, 8])
@pytest.mark.parametrize("segment_length", [1, 2, 5])
def test_matches_the_oracle(layer, segment_length, memory_length):
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


def test_the_order_of_what_is_seen_does_not_matter(layer):
    """The attention knows nothing of positions; they have to be in its inputs."""
    inputs, memory = random(B, 1, D), random(B, 6, D, seed=1)
    forwards, backwards = (attend(layer, inputs, each) for each in (memory, memory[:, ::-1]))
    assert max_difference(forwards, backwards) <= 1e-6


def test_two_segments_with_memory_equal_one_pass_over_both(layer):
    """What the inputs carry is the same here; a model adds other positions to each."""
    both = random(B, 8, D)
    one_pass = ops.convert_to_numpy(attend(layer, both, both[:, :0]))
    second = attend(layer, both[:, 4:], both[:, :4])
    assert max_difference(second, one_pass[:, 4:]) <= 1e-6


def test_probabilities_are_what_the_call_reads_with(layer):
    inputs, memory = random(B, 4, D), random(B, 3, D, seed=1)
    mask = functional.causal_memory_mask(4, 3)
    probabilities = ops.convert_to_numpy(
        layer.attention_probabilities(inputs, memory, attention_mask=mask)
    )
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, atol=1e-6)
    assert not np.any(probabilities[~np.broadcast_to(mask, probabilities.shape)])
    values = np.concatenate([memory, inputs], axis=1) @ ops.convert_to_numpy(layer.value.kernel)
    values = values.reshape(B, 7, N, H)
    read = np.einsum("bntk,bknh->btnh", probabilities, values).reshape(B, 4, N * H)
    expected = read @ ops.convert_to_numpy(layer.output_projection.kernel)
    assert max_difference(attend(layer, inputs, memory), expected) <= 1e-6


@pytest.mark.parametrize("sizes", [(0, 4), (2, 0)])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match=r"`num_heads` and `head_dim` must be positive.*Received"):
        AbsoluteAttention(*sizes)
