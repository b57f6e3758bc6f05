"""The recurrent baselines in NumPy, with loops: what the layers are held against."""

import math

import numpy as np


def sigmoid(value):
    return 1.0 / (1.0 + math.exp(-value))


def lstm_layer(layer, inputs, output, cell):
    """One row of one LSTM layer, one position and one unit at a time.

    Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al.
    (2000): `c' = f c + i tanh(g)` and `h' = o tanh(c')`.
    """
    weights = layer.cell
    kernel, recurrent = weights.kernel.numpy(), weights.recurrent_kernel.numpy()
    bias, units = weights.bias.numpy(), layer.units
    outputs = []
    for vector in inputs:
        summed = vector @ kernel + output @ recurrent + bias
        next_output, next_cell = np.zeros(units), np.zeros(units)
        for unit in range(units):
            gates = [summed[gate * units + unit] for gate in range(4)]
            next_cell[unit] = sigmoid(gates[1]) * cell[unit]
            next_cell[unit] += sigmoid(gates[0]) * math.tanh(gates[2])
            next_output[unit] = sigmoid(gates[3]) * math.tanh(next_cell[unit])
        output, cell = next_output, next_cell
        outputs.append(output)
    return outputs, output, cell


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


def language_model(layer_oracle, model, tokens, targets, states):
    """One segment, in float64: nats, hidden states and the next states."""
    states = [list(state) for state in states]
    table = model.embedding.tables[0].numpy().astype("float64")
    nats, outputs = np.zeros(tokens.shape), []
    for row in range(len(tokens)):
        hidden = [table[token] * math.sqrt(table.shape[1]) for token in tokens[row]]
        for index, layer in enumerate(model.recurrent_layers):
            first, cell = states[2 * index][row], states[2 * index + 1][row]
            hidden, first, cell = layer_oracle(layer, hidden, first, cell)
            states[2 * index][row], states[2 * index + 1][row] = first, cell
        for at, vector in enumerate(hidden):
            logits = table @ vector + model.softmax.biases[0].numpy()
            nats[row, at] = math.log(np.exp(logits).sum()) - logits[targets[row, at]]
        outputs.append(hidden)
    return nats, np.array(outputs), [np.array(state) for state in states]
