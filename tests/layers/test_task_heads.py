"""Heads: what they pool, what they leave out, and what they save."""

import keras
import numpy as np

from txl_tf.layers import PooledHead, SpanHead

MASK = np.array([[True, True, False], [True, True, True], [False, False, False]])


def hidden(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def without_projection(head, width):
    """The head with a projection that passes on the first features."""
    head.build((None, None, width), (None, None))
    bias = [np.zeros(head.num_outputs)] if head.projection.use_bias else []
    head.projection.set_weights([np.eye(width, head.num_outputs), *bias])
    return head


def test_the_last_token_and_the_mean_leave_padding_out():
    states = hidden(3, 3, 2)
    last = without_projection(PooledHead(2), 2)(states, MASK)
    np.testing.assert_array_equal(last, [states[0, 1], states[1, 2], [0.0, 0.0]])
    mean = without_projection(PooledHead(2, pooling="mean"), 2)(states, MASK)
    expected = [states[0, :2].mean(axis=0), states[1].mean(axis=0), [0.0, 0.0]]
    np.testing.assert_allclose(mean, expected, atol=1e-6)


def test_spans_are_never_in_the_padding():
    states = hidden(3, 3, 2)
    spans = np.array(without_projection(SpanHead(), 2)(states, MASK))
    np.testing.assert_array_equal(spans[1], states[1].T)
    chances = np.array(keras.ops.softmax(spans[:2]))
    assert (chances[0, :, 2] == 0.0).all()
    np.testing.assert_allclose(chances.sum(axis=-1), 1.0, rtol=1e-6)


def test_logits_are_float32_whatever_the_model_computes_in():
    head = PooledHead(2, dtype="mixed_bfloat16")
    assert head(keras.ops.cast(hidden(3, 3, 2), "bfloat16"), MASK).dtype == "float32"
