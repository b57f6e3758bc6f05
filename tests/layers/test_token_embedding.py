import math

import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.layer_checks import check_layer
from txl_tf.layers.token_embedding import TokenEmbedding

TOKEN_IDS = np.array([[0, 4, 4], [3, 1, 0]], "int32")


def test_basics():
    check_layer(
        TokenEmbedding,
        init_kwargs={"vocabulary_size": 5, "hidden_dim": 8},
        inputs={"token_ids": TOKEN_IDS},
        expected_output_shape=(2, 3, 8),
        num_weights=1,
    )


def test_rows_of_the_table_are_scaled_by_the_root_of_the_width():
    layer = TokenEmbedding(5, 8)
    outputs = ops.convert_to_numpy(layer(TOKEN_IDS))
    table = layer.table.numpy()
    for row in range(2):
        for at in range(3):
            expected = table[TOKEN_IDS[row, at]] * math.sqrt(8)
            assert reference.max_difference(outputs[row, at], expected) <= 1e-7


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_ids_of_any_integer_dtype_mean_the_same(dtype):
    layer = TokenEmbedding(5, 8)
    expected = layer(TOKEN_IDS)
    assert reference.max_difference(layer(TOKEN_IDS.astype(dtype)), expected) == 0.0


def test_half_precision_keeps_large_ids_apart():
    # bfloat16 cannot count above 256: ids must never pass through it.
    layer = TokenEmbedding(2000, 2, dtype="bfloat16")
    layer.build((None, None))
    layer.table.assign(ops.stack([ops.arange(2000) // 100, ops.arange(2000) % 100], axis=1))
    outputs = layer(np.array([[1000, 1001, 1999]], "int32"))
    outputs = ops.convert_to_numpy(ops.cast(outputs, "float32")) / math.sqrt(2)
    np.testing.assert_allclose(outputs, [[[10, 0], [10, 1], [19, 99]]], rtol=0.01)


@pytest.mark.parametrize("sizes", [(0, 8), (5, 0)])
def test_sizes_must_be_positive(sizes):
    with pytest.raises(ValueError, match=r"`vocabulary_size` and `hidden_dim`.*Received"):
        TokenEmbedding(*sizes)
