"""Multi-head attention over segment and memory, with every encoding of positions."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference_variants
from tests.layer_checks import built, check_layer, random, randomize_weights, tf
from tests.reference import max_difference
from txl_tf import functional
from txl_tf.layers.attention import MemoryAttention, RelativeAttention, ShawAttention

B, D, N, H = 2, 6, 2, 4


@pytest.fixture(scope="module")
def layer():
    return built(MemoryAttention(N, H), D)


def mask_of(inputs, memory, valid_length=None, same_length=False, same_length_keys=None):
    memory_length = memory.shape[1]
    if valid_length is not None:
        valid_length = ops.convert_to_tensor(valid_length, "int32")
    farthest = memory_length - (same_length_keys == "memory") if same_length else None
    return functional.causal_memory_mask(inputs.shape[1], memory_length, valid_length, farthest)


def attend(layer, inputs, memory, **mask):
    return layer(inputs, memory=memory, attention_mask=mask_of(inputs, memory, **mask))


@pytest.mark.parametrize(
    ("layer_class", "sizes"),
    # As many distances as there are, or the gradient of the rest would be 0.
    [(MemoryAttention, {}), (ShawAttention, {"num_positions": 4})],
)
def test_basics(layer_class, sizes):
    inputs = {"inputs": random(B, 4, D), "memory": random(B, 3, D, seed=1)}
    mask = np.tril(np.ones((1, 1, 4, 7), bool), 3)
    check_layer(
        layer_class,
        init_kwargs={"num_heads": N, "head_dim": H, "dropout": 0.1, **sizes},
        inputs={**inputs, "attention_mask": mask},
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


@pytest.mark.parametrize("num_positions", [3, 20])
@pytest.mark.parametrize("memory_length", [0, 5])
@pytest.mark.parametrize("segment_length", [1, 5])
def test_matches_the_oracle(segment_length, memory_length, num_positions):
    for has_biases in (True, False):
        layer = built(ShawAttention(N, H, num_positions, has_biases), D)
        require_oracle(layer, segment_length, memory_length)


@pytest.fixture(scope="module")
def relative():
    return built(RelativeAttention(N, H), D)


def attend_relative(
    relative,
    inputs,
    memory,
    valid_length=None,
    same_length=False,
    clamp_length=None,
    **more,
):
    return relative(
        inputs,
        position_encoding=functional.relative_positional_encoding(
            memory.shape[1] + inputs.shape[1], D, clamp_length
        ),
        memory=memory,
        attention_mask=mask_of(inputs, memory, valid_length, same_length),
        **more,
    )


# Keras warns of a softmax over one key, which is right where there is only one.
@pytest.mark.filterwarnings("ignore:.*You are using a softmax over axis:UserWarning")
@pytest.mark.parametrize("memory_length", [0, 1, 8])
@pytest.mark.parametrize("segment_length", [1, 2, 5])
def test_matches_the_oracle_of_relative(relative, segment_length, memory_length):
    inputs = random(B, segment_length, D)
    memory = random(B, memory_length, D, seed=1)
    weights = reference_variants.attention_weights(relative)
    # Rows that differ: one memory full or nearly, the other nearly or all empty.
    valid_lengths = (None, [memory_length, 0], [memory_length // 2, max(0, memory_length - 1)])
    clamp_lengths = (None, max(1, (memory_length + segment_length) // 2))
    for valid_length, same_length, clamp_length in itertools.product(
        valid_lengths, (False, True), clamp_lengths
    ):
        options = {
            "valid_length": valid_length,
            "same_length": same_length,
            "clamp_length": clamp_length,
        }
        outputs = attend_relative(relative, inputs, memory, **options)
        expected = reference_variants.attention(inputs, memory, weights, **options)
        assert max_difference(outputs, expected) <= 1e-5, options


@pytest.mark.parametrize("compile_call", [False, True])
def test_one_head_matches_the_oracle(compile_call):
    layer = built(RelativeAttention(1, H), D)
    inputs, memory = random(B, 5, D), random(B, 3, D, seed=1)
    expected = reference_variants.attention(
        inputs, memory, reference_variants.attention_weights(layer)
    )
    attend = tf.function(attend_relative) if compile_call else attend_relative
    assert max_difference(attend(layer, inputs, memory), expected) <= 1e-5


def test_given_biases_take_the_place_of_own_biases(relative):
    shared = RelativeAttention(N, H, own_biases=False)
    shared.build((None, None, D))
    assert len(shared.weights) == 5
    names = ("query", "key", "value", "position", "output_projection")
    for name in names:
        getattr(shared, name).kernel.assign(getattr(relative, name).kernel)
    inputs, memory = random(B, 4, D), random(B, 3, D, seed=1)
    biases = {
        "content_bias": relative.content_bias,
        "position_bias": relative.position_bias,
    }
    outputs = attend_relative(shared, inputs, memory, **biases)
    assert max_difference(outputs, attend_relative(relative, inputs, memory)) <= 1e-6
    for missing in biases:
        given = {name: bias for name, bias in biases.items() if name != missing}
        with pytest.raises(ValueError, match=r"needs `content_bias` and `position_bias`"):
            attend_relative(shared, inputs, memory, **given)


def test_gradient_flows_into_segment_and_memory(relative):
    """The block makes the memory a constant, before it adds what is learned."""
    inputs, memory = tf.constant(random(B, 4, D)), tf.constant(random(B, 3, D, seed=1))
    with tf.GradientTape() as tape:
        tape.watch([inputs, memory])
        loss = tf.reduce_sum(attend_relative(relative, inputs, memory) ** 2)
    for gradient in tape.gradient(loss, [inputs, memory]):
        assert np.all(np.abs(gradient.numpy()).max(axis=-1) > 1e-4)


def test_dropout_keeps_the_expectation(relative):
    """The read is linear in the probabilities, so the mean over masks is the plain read."""
    dropping = RelativeAttention(N, H, dropout=0.5)
    dropping.build((None, None, D))
    randomize_weights(dropping)
    inputs, memory = (np.repeat(random(1, length, D), 2000, axis=0) for length in (4, 3))
    seed = ops.convert_to_tensor([7, 8], "int32")
    outputs = ops.convert_to_numpy(
        attend_relative(dropping, inputs, memory, dropout_seed=seed, training=True)
    )
    plain = ops.convert_to_numpy(attend_relative(relative, inputs[:1], memory[:1]))[0]
    standard_error = outputs.std(axis=0) / 2000**0.5
    assert standard_error.min() > 0.0
    assert np.all(np.abs(outputs.mean(axis=0) - plain) < 5 * standard_error)


def test_half_precision_keeps_the_softmax_in_float32(relative):
    half = RelativeAttention(N, H, dtype="mixed_bfloat16")
    seen = []
    softmax = keras.ops.softmax

    def spy(scores, axis):
        seen.append(keras.backend.standardize_dtype(scores.dtype))
        return softmax(scores, axis=axis)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txl_tf.layers.attention.ops.softmax", spy)
        outputs = attend_relative(half, random(B, 4, D), random(B, 3, D))
    assert seen == ["float32"]
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"
