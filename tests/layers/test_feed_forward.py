import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.layer_checks import check_layer, randomize_weights
from txl_tf.layers.feed_forward import FeedForward

INPUTS = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")


def test_basics():
    check_layer(
        FeedForward,
        init_kwargs={"intermediate_dim": 6, "dropout": 0.1},
        inputs={"inputs": INPUTS},
        expected_output_shape=(2, 3, 8),
        num_weights=4,
    )


def test_matches_the_oracle_at_every_position():
    layer = FeedForward(6)
    layer.build(INPUTS.shape)
    randomize_weights(layer)
    outputs = ops.convert_to_numpy(layer(INPUTS))
    weights = {
        "inner_kernel": layer.inner.kernel.numpy(),
        "inner_bias": layer.inner.bias.numpy(),
        "outer_kernel": layer.outer.kernel.numpy(),
        "outer_bias": layer.outer.bias.numpy(),
    }
    for row in range(2):
        for at in range(3):
            expected = reference.feed_forward(INPUTS[row, at].astype("float64"), weights)
            assert reference.max_difference(outputs[row, at], expected) <= 1e-5


def test_dropout_acts_on_the_inner_activations():
    layer = FeedForward(64, dropout=0.5)
    layer.build(INPUTS.shape)
    randomize_weights(layer)
    seed = ops.convert_to_tensor([1, 2], "int32")
    kept = layer(INPUTS, dropout_seed=seed, training=True)
    again = layer(INPUTS, dropout_seed=seed, training=True)
    assert reference.max_difference(kept, again) == 0.0
    assert reference.max_difference(kept, layer(INPUTS)) > 0.1
    # A mask on the outputs would show as exact zeros.
    assert np.all(ops.convert_to_numpy(kept) != 0.0)


def test_size_must_be_positive():
    with pytest.raises(ValueError, match=r"`intermediate_dim` must be positive.*Received.*=0"):
        FeedForward(0)
