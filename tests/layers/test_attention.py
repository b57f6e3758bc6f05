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


@pytest.mark.parametrize("memory_length", [0, 1, 5, 8])
@pytest.mark.parametrize("segment_length", [1, 2, 5])
def test_absolute_attention_matches_the_oracle(layer, segment_length, memory_length):
    require_oracle(layer, segment_length, memory_length)


def test_the_order_of_what_is_seen_does_not_matter(layer):
    """The attention knows nothing of positions; they have to be in its inputs."""
    inputs, memory = random(B, 1, D), random(B, 6, D, seed=1)
    forwards, backwards = (attend(layer, inputs, each) for each in (memory, memory[:, ::-1]))
    assert max_difference(forwards, backwards) <= 1e-6


def test_absolute_attention_two_segments_with_memory_equal_one_pass_over_both(layer):
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
def test_absolute_attention_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match=r"`num_heads` and `head_dim` must be positive.*Received"):
        AbsoluteAttention(*sizes)


def made(num_positions, seed=7, layer_class=ShawAttention):
    layer = layer_class(N, H, num_positions)
    layer.build((None, None, D))
    randomize_weights(layer, seed=seed)
    return layer


@pytest.mark.parametrize("num_positions", [1, 3, 20])
@pytest.mark.parametrize("memory_length", [0, 1, 5, 8])
@pytest.mark.parametrize("segment_length", [1, 2, 5])
def test_matches_the_oracle(segment_length, memory_length, num_positions):
    require_oracle(made(num_positions), segment_length, memory_length)


@pytest.mark.parametrize("num_positions", [2, 20])
@pytest.mark.parametrize(("segment_length", "memory_length"), [(1, 5), (5, 0), (4, 3)])
def test_two_terms_match_the_oracle(segment_length, memory_length, num_positions):
    layer = made(num_positions, layer_class=TwoTermShawAttention)
    require_oracle(layer, segment_length, memory_length)


def test_without_biases_the_two_forms_of_shaw_are_the_same():
    """What tells them apart are the terms (c) and (d)."""
    two, four = made(4, layer_class=TwoTermShawAttention), made(4)
    weights = {variable.path.split("/", 1)[1]: variable for variable in two.weights}
    for variable in four.weights:
        name = variable.path.split("/", 1)[1]
        drawn = weights[name].numpy() if name in weights else np.zeros(variable.shape)
        variable.assign(drawn)
    inputs, memory = random(B, 4, D), random(B, 3, D, seed=1)
    outputs = attend(two, inputs, memory)
    assert max_difference(outputs, attend(four, inputs, memory)) <= 1e-6
    four.content_bias.assign(np.ones(four.content_bias.shape))
    assert max_difference(outputs, attend(four, inputs, memory)) > 1e-3


@pytest.mark.parametrize("name", ["content_bias", "distance_keys", "distance_bias"])
def test_each_term_beside_the_content_is_computed(name):
    layer, changed = made(4), made(4)
    variable = getattr(changed, name)
    # A number more for all distances would be lost in the softmax, so they differ.
    variable.assign(3.0 * variable)
    inputs, memory = random(B, 4, D), random(B, 3, D, seed=1)
    outputs = attend(changed, inputs, memory)
    assert max_difference(outputs, attend(layer, inputs, memory)) > 1e-3
    weights = reference_variants.attention_weights(changed)
    expected = reference_variants.attention(inputs, memory, weights)
    assert max_difference(outputs, expected) <= 1e-5


def test_a_row_of_the_table_acts_on_its_own_distance_only():
    """Query 2 of 3 sees distances 0, 1, 2; query 0 only distance 0."""
    layer, inputs = made(3), random(B, 3, D)
    nothing = random(B, 0, D)
    before = ops.convert_to_numpy(attend(layer, inputs, nothing))
    keys = ops.convert_to_numpy(layer.distance_keys).copy()
    keys[2] += 1.0
    layer.distance_keys.assign(keys)
    after = ops.convert_to_numpy(attend(layer, inputs, nothing))
    assert max_difference(after[:, :2], before[:, :2]) == 0.0
    assert max_difference(after[:, 2], before[:, 2]) > 1e-3


def test_distances_beyond_the_table_share_its_last_row():
    """A table whose last row is repeated changes nothing."""
    short, long = made(3), made(9)
    for source, target in zip(short.weights, long.weights, strict=True):
        value = ops.convert_to_numpy(source)
        if tuple(source.shape) != tuple(target.shape):
            value = np.concatenate([value, np.repeat(value[-1:], 6, axis=0)])
        target.assign(value)
    inputs, memory = random(B, 4, D), random(B, 5, D, seed=1)
    difference = max_difference(attend(short, inputs, memory), attend(long, inputs, memory))
    assert difference <= 1e-6


def test_two_segments_with_memory_equal_one_pass_over_both():
    layer, both = made(20), random(B, 8, D)
    one_pass = ops.convert_to_numpy(attend(layer, both, both[:, :0]))
    second = attend(layer, both[:, 4:], both[:, :4])
    assert max_difference(second, one_pass[:, 4:]) <= 1e-6


def test_unfilled_memory_is_never_read():
    layer, inputs, memory = made(4), random(B, 4, D), random(B, 3, D, seed=1)
    before = attend(layer, inputs, memory, valid_length=[0, 2])
    memory[0] = 1e6
    memory[1, 0] = 1e6
    assert max_difference(attend(layer, inputs, memory, valid_length=[0, 2]), before) == 0.0


@pytest.mark.parametrize("sizes", [(0, 4, 3), (2, 0, 3), (2, 4, 0), (2, 4, -1)])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match=r"must be positive.*Received: num_"):
        ShawAttention(*sizes)
