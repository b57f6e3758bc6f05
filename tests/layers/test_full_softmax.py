import numpy as np
from keras import ops

from tests.layer_checks import needs_tensorflow, randomize_weights
from txl_tf.layers.adaptive_softmax import AdaptiveSoftmax

RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(2, 3, 8)).astype("float32")
TABLE = RNG.normal(size=(5, 8)).astype("float32")
TARGET_IDS = np.array([[0, 4, 4], [3, 1, 0]], "int32")


def made(**kwargs):
    layer = AdaptiveSoftmax(5, 8, **kwargs)
    layer.build(HIDDEN.shape)
    randomize_weights(layer)
    return layer


def test_large_logits_stay_finite_and_the_certain_token_costs_nothing():
    layer = made()
    nll = layer.negative_log_likelihood(HIDDEN[:1, :1] * 1e4, TARGET_IDS[:1, :1], [TABLE])
    assert np.all(np.isfinite(ops.convert_to_numpy(nll)))
    hidden = 1e3 * TABLE[None, [2]] / np.sum(TABLE[2] ** 2)
    table = np.where(np.arange(5)[:, None] == 2, TABLE, 0.0).astype("float32")
    nll = layer.negative_log_likelihood(hidden.astype("float32"), np.array([[2]]), [table])
    assert ops.convert_to_numpy(nll).item() == 0.0


def test_bias_of_mixed_precision_is_not_rounded():
    layer = made(dtype="mixed_bfloat16")
    log_probs = layer(np.zeros_like(HIDDEN), [TABLE])
    expected = ops.convert_to_numpy(ops.log_softmax(layer.biases[0].value))
    for row in ops.convert_to_numpy(log_probs).reshape(-1, 5):
        np.testing.assert_array_equal(row, expected)


@needs_tensorflow  # JAX has no float64 unless the whole process asks for it
def test_double_precision_stays_double():
    log_probs = made(dtype="float64")(HIDDEN.astype("float64"), [TABLE])
    assert log_probs.dtype.name == "float64"
