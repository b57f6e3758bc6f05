"""Multi-head attention over segment and memory, with every encoding of positions."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests import reference_variants
from tests.layer_checks import built, causal_mask, random
from tests.reference import max_difference
from txl_tf import functional
from txl_tf.layers import MemoryAttention, RelativeAttention, ShawAttention

B, D, N, H = 2, 6, 2, 4
LAYERS = {
    "absolute": lambda: MemoryAttention(N, H),
    "relative": lambda: RelativeAttention(N, H),
    "one head": lambda: RelativeAttention(1, H),
    "shaw": lambda: ShawAttention(N, H, num_positions=3),
    "shaw, more distances than there are": lambda: ShawAttention(N, H, num_positions=20),
    "shaw two terms": lambda: ShawAttention(N, H, num_positions=3, has_biases=False),
}


def attend(layer, inputs, memory, mask, clamp_length=None, **options):
    if isinstance(layer, RelativeAttention):
        key_length = memory.shape[1] + inputs.shape[1]
        options["position_encoding"] = functional.relative_positional_encoding(
            key_length, D, clamp_length
        )
    return layer(inputs, memory=memory, attention_mask=mask, **options)


# Keras warns of a softmax over one key, which is right where there is only one.
@pytest.mark.filterwarnings("ignore:.*You are using a softmax over axis:UserWarning")
@pytest.mark.parametrize("kind", LAYERS)
def test_attention_matches_the_formulas(kind):
    layer = built(LAYERS[kind](), D)
    weights = reference_variants.attention_weights(layer)
    for segment_length, memory_length in itertools.product((1, 5), (0, 1, 8)):
        inputs, memory = random(B, segment_length, D), random(B, memory_length, D, seed=1)
        masks = [{}, {"same_length": True}]
        if memory_length:
            masks.append({"same_length": True, "same_length_keys": "memory"})
        clamp_lengths = (None, 2) if kind == "relative" else (None,)
        valid_lengths = (None, [memory_length, 0], [memory_length // 2, max(0, memory_length - 1)])
        for valid_length, mask_options, clamp in itertools.product(
            valid_lengths, masks, clamp_lengths
        ):
            options = {"valid_length": valid_length, "clamp_length": clamp, **mask_options}
            filled = valid_length and ops.convert_to_tensor(valid_length, "int32")
            reach = memory_length - ("same_length_keys" in mask_options)
            farthest = reach if mask_options else None
            mask = causal_mask(segment_length, memory_length, filled, farthest)
            outputs = attend(layer, inputs, memory, mask, clamp)
            expected = reference_variants.attention(inputs, memory, weights, **options)
            assert max_difference(outputs, expected) <= 1e-5, (segment_length, options)
    compiled = tf.function(attend)(layer, inputs, memory, mask, clamp)
    assert max_difference(compiled, outputs) <= 1e-5


def test_dropout_keeps_the_expectation():
    """The read is linear in the probabilities, so the mean over masks is the plain read."""
    layer = built(RelativeAttention(N, H, dropout=0.5), D)
    inputs, memory = (np.repeat(random(1, length, D), 2000, axis=0) for length in (4, 3))
    mask, seed = causal_mask(4, 3), ops.convert_to_tensor([7, 8], "int32")
    outputs = attend(layer, inputs, memory, mask, dropout_seed=seed, training=True)
    outputs = ops.convert_to_numpy(outputs)
    plain = ops.convert_to_numpy(attend(layer, inputs[:1], memory[:1], mask))[0]
    standard_error = outputs.std(axis=0) / 2000**0.5
    assert standard_error.min() > 0.0
    assert np.all(np.abs(outputs.mean(axis=0) - plain) < 5 * standard_error)


def test_half_precision_keeps_the_softmax_in_float32(monkeypatch):
    layer, dtypes, softmax = RelativeAttention(N, H, dtype="mixed_bfloat16"), [], keras.ops.softmax

    def spy(scores, axis):
        dtypes.append(keras.backend.standardize_dtype(scores.dtype))
        return softmax(scores, axis=axis)

    monkeypatch.setattr("txl_tf.functional.ops.softmax", spy)
    mask = causal_mask(4, 3)
    outputs = attend(layer, random(B, 4, D), random(B, 3, D), mask)
    assert dtypes == ["float32"]
    assert keras.backend.standardize_dtype(outputs.dtype) == "bfloat16"


@pytest.mark.parametrize("names", ["memory kept", "attend attention_mask", "kept attend"])
def test_arguments_of_a_call_that_exclude_each_other_are_refused(names):
    arguments = dict.fromkeys(names.split(), random(B, 1, D))
    with pytest.raises(ValueError, match=r"takes only one of each pair.*Received: "):
        built(RelativeAttention(N, H), D)(random(B, 1, D), **arguments)
