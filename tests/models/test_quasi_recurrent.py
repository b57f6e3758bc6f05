import math

import keras
import numpy as np
import pytest

from tests.layer_checks import needs_tensorflow, randomize_weights, tf
from tests.reference import max_difference
from txl_tf.models.recurrent import QuasiRecurrent

B, T, C, D = 2, 5, 4, 3
INPUTS = {
    "inputs": np.random.default_rng(0).normal(size=(B, T, C)).astype("float32"),
    "previous_input": np.random.default_rng(1).normal(size=(B, C)).astype("float32"),
    "cell_state": np.random.default_rng(2).normal(size=(B, D)).astype("float32"),
}


def made(**kwargs):
    layer = QuasiRecurrent(D, **kwargs)
    layer.build((None, None, C))
    randomize_weights(layer)
    return layer


def inputs_of_length(length, seed=3):
    return np.random.default_rng(seed).normal(size=(B, length, C)).astype("float32")


def sigmoid(value):
    return 1.0 / (1.0 + math.exp(-value))


def oracle(layer, inputs, previous_input, cell_state):
    """Bradbury et al. (2017), Section 2, one position and one unit at a time."""
    kernel, bias = layer.kernel.numpy().astype("float64"), layer.bias.numpy()
    outputs = np.zeros((*inputs.shape[:2], D))
    cells = np.array(cell_state, "float64")
    for row in range(len(inputs)):
        before = previous_input[row]
        for at, now in enumerate(inputs[row]):
            for unit in range(D):
                columns = [gate * D + unit for gate in range(3)]
                candidate, forget, output = (
                    before @ kernel[0][:, column] + now @ kernel[1][:, column] + bias[column]
                    for column in columns
                )
                forget = sigmoid(forget)
                cells[row, unit] *= forget
                cells[row, unit] += (1.0 - forget) * math.tanh(candidate)
                outputs[row, at, unit] = sigmoid(output) * cells[row, unit]
            before = now
    return outputs, cells


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 13])
def test_matches_the_oracle(length):
    layer, inputs = made(), inputs_of_length(length)
    state = (INPUTS["previous_input"], INPUTS["cell_state"])
    outputs, last_input, cells = layer(inputs, *state)
    expected_outputs, expected_cells = oracle(layer, inputs, *state)
    assert max_difference(outputs, expected_outputs) <= 1e-6
    assert max_difference(cells, expected_cells) <= 1e-6
    assert max_difference(last_input, inputs[:, -1]) == 0.0


@needs_tensorflow
def test_gradients_match_finite_differences_in_float64():
    layer = made(dtype="float64")
    inputs = {name: tf.constant(array, tf.float64) for name, array in INPUTS.items()}
    with tf.GradientTape() as tape:
        tape.watch(list(inputs.values()))
        loss = tf.reduce_sum(layer(**inputs)[0] ** 2)
    gradients = tape.gradient(loss, inputs)
    rng, step = np.random.default_rng(4), 1e-6
    for name, gradient in gradients.items():
        for _ in range(4):
            entry = tuple(rng.integers(size) for size in gradient.shape)
            values = []
            for sign in (1, -1):
                moved = inputs[name].numpy()
                moved[entry] += sign * step
                values.append(float(tf.reduce_sum(layer(**{**inputs, name: moved})[0] ** 2)))
            numeric = (values[0] - values[1]) / (2 * step)
            assert abs(gradient.numpy()[entry] - numeric) <= 1e-7, (name, entry)


@pytest.mark.parametrize(
    "dtype", ["mixed_bfloat16", "bfloat16", pytest.param("float64", marks=needs_tensorflow)]
)
def test_states_are_at_least_float32_and_not_rounded_on_the_way_in(dtype):
    layer = made(dtype=dtype)
    bias = layer.bias.numpy()
    bias[D : 2 * D] = 100.0  # keeps the cell state as it is
    layer.bias.assign(bias)
    state_dtype = "float64" if dtype == "float64" else "float32"
    cell_state = np.full((B, D), 1 + 2**-20, state_dtype)
    outputs, last_input, cells = layer(INPUTS["inputs"], INPUTS["previous_input"], cell_state)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    for state in (last_input, cells):
        assert keras.backend.standardize_dtype(state.dtype) == state_dtype
    assert max_difference(cells, cell_state) <= 1e-7
