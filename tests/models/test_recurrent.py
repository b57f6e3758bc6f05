"""The QRNN against loops over rows, positions and units, in float64.

The LSTM is a layer of Keras.
"""

import math

import keras
import numpy as np
import pytest

from tests.layer_checks import random, randomize_weights
from tests.models.variants import B, T, V, assert_segments_match
from tests.reference import max_difference
from txl_tf.config.model import QRNNConfig
from txl_tf.layers.quasi_recurrent import QuasiRecurrent
from txl_tf.models import create_model

C, D = 4, 3
SIZES = {"vocabulary_size": V, "hidden_dim": 6, "segment_length": T, "dropout": 0.0}


def sigmoid(value):
    return 1.0 / (1.0 + math.exp(-value))


def qrnn_layer(layer, inputs, last_input, cell):
    """One row of one QRNN layer, one position and one unit at a time.

    Bradbury et al. (2017), Section 2: `c' = f c + (1 - f) z` and `h' = o c'`.
    """
    kernel, bias, units = layer.kernel.numpy(), layer.bias.numpy(), layer.units
    outputs = []
    for vector in inputs:
        summed = last_input @ kernel[0] + vector @ kernel[1] + bias
        output, next_cell = np.zeros(units), np.zeros(units)
        for unit in range(units):
            candidate = math.tanh(summed[unit])
            forget = sigmoid(summed[units + unit])
            next_cell[unit] = forget * cell[unit] + (1.0 - forget) * candidate
            output[unit] = sigmoid(summed[2 * units + unit]) * next_cell[unit]
        last_input, cell = vector, next_cell
        outputs.append(output)
    return outputs, last_input, cell


def language_model(model, tokens, targets, states):
    """One segment, in float64: nats, hidden states and the next states."""
    states = [list(state) for state in states]
    table = model.embedding.tables[0].numpy().astype("float64")
    nats, outputs = np.zeros(tokens.shape), []
    for row in range(len(tokens)):
        hidden = [table[token] * math.sqrt(table.shape[1]) for token in tokens[row]]
        for index, layer in enumerate(model.blocks):
            first, cell = states[2 * index][row], states[2 * index + 1][row]
            hidden, first, cell = qrnn_layer(layer, hidden, first, cell)
            states[2 * index][row], states[2 * index + 1][row] = first, cell
        for at, vector in enumerate(hidden):
            logits = table @ vector + model.softmax.biases[0].numpy()
            nats[row, at] = math.log(np.exp(logits).sum()) - logits[targets[row, at]]
        outputs.append(hidden)
    return nats, np.array(outputs), [np.array(state) for state in states]


@pytest.mark.parametrize("changes", [{"embedding_dim": 5}, {}, {"num_layers": 1}], ids=str)
def test_three_segments_match_the_oracle(changes):
    model = create_model(QRNNConfig(**{**SIZES, "num_layers": 2, **changes}))
    randomize_weights(model)

    def oracle(model, inputs, targets, states, valid_length):
        states = [np.squeeze(state, 1) for state in states]
        *scores, states = language_model(model, inputs, targets, states)
        return *scores, [np.expand_dims(state, 1) for state in states], [1] * B

    assert_segments_match(model, oracle)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "float64"])
def test_states_are_at_least_float32_and_not_rounded_on_the_way_in(dtype):
    layer = QuasiRecurrent(D, dtype=dtype)
    layer.build((None, None, C))
    randomize_weights(layer)
    bias = layer.bias.numpy()
    bias[D : 2 * D] = 100.0  # keeps the cell state as it is
    layer.bias.assign(bias)
    state_dtype = "float64" if dtype == "float64" else "float32"
    cell_state = np.full((B, D), 1 + 2**-20, state_dtype)
    outputs, last_input, cells = layer(random(B, 5, C), random(B, C), cell_state)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    for state in (last_input, cells):
        assert keras.backend.standardize_dtype(state.dtype) == state_dtype
    assert max_difference(cells, cell_state) <= 1e-7
