"""Layer of a QRNN, in which only the pooling of each channel is recurrent.

Shape letters used in this module: B rows, T segment length, C input width, D hidden width.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.configured_layer import normal_unless


class QuasiRecurrent(keras.layers.Layer):
    """A QRNN layer of filter width 2 with fo-pooling (Bradbury et al., 2017, Section 2).

    Candidates and gates depend on the inputs `x` of this position and the one before alone, so
    they are one product for all positions:

        z = tanh(x[t-1] Wz' + x[t] Wz + bz)
        f = sigmoid(x[t-1] Wf' + x[t] Wf + bf)
        o = sigmoid(x[t-1] Wo' + x[t] Wo + bo)

    Only the pooling is recurrent, and it works on each channel separately:

        c[t] = f * c[t-1] + (1 - f) * z
        h[t] = o * c[t]

    At the start of a segment, `x[t-1]` `(B, C)` and `c[t-1]` `(B, D)` come from the end of the
    previous one, and are returned for the next one. Gates and cell states are at least float32
    under any policy, because rounding in half precision would erase a long memory.

    References:
     - [Bradbury et al., 2017](https://arxiv.org/abs/1611.01576)
    """

    def __init__(self, units, kernel_initializer=None, **kwargs):
        # Autocasting would round the cell state of the caller.
        super().__init__(autocast=False, **kwargs)
        self.units = units
        self.kernel_initializer = normal_unless(kernel_initializer)

    def build(self, inputs_shape, **other_shapes):
        self.kernel = self.add_weight(
            shape=(2, inputs_shape[-1], 3 * self.units),
            initializer=self.kernel_initializer,
            name="kernel",
        )
        self.bias = self.add_weight(
            shape=(3 * self.units,), initializer="zeros", autocast=False, name="bias"
        )

    def call(self, inputs, previous_input, cell_state):
        inputs = ops.cast(inputs, self.compute_dtype)
        first = ops.expand_dims(ops.cast(previous_input, self.compute_dtype), 1)
        inputs_before = ops.concatenate([first, inputs[:, :-1]], axis=1)  # [B, T, C]
        kernel = ops.cast(self.kernel, self.compute_dtype)
        sums = ops.matmul(inputs_before, kernel[0]) + ops.matmul(inputs, kernel[1])
        sums = functional.at_least_float32(sums)
        sums = sums + ops.cast(self.bias, sums.dtype)
        candidates, forget_gates, output_gates = ops.split(sums, 3, axis=-1)  # z, f, o
        candidates = ops.tanh(candidates)
        forget_gates = ops.sigmoid(forget_gates)
        output_gates = ops.sigmoid(output_gates)
        cells = _pool(candidates, forget_gates, cell_state)  # [B, T, D]
        outputs = ops.cast(output_gates * cells, self.compute_dtype)
        return outputs, functional.at_least_float32(inputs[:, -1]), cells[:, -1]


def _pool(candidates, forget_gates, cell_state):
    """Computes the cell states `(B, T, D)` of all positions in about `log2(T)` steps.

    A run of positions changes the cell state by one decay and one addition, and two adjoining
    runs combine into one: `f2 * (f1 * c + a1) + a2 = (f1 * f2) * c + (f2 * a1 + a2)`. Every step
    doubles the length of the run that ends at each position.
    """
    segment_length = ops.shape(candidates)[1]
    decays, additions = forget_gates, (1.0 - forget_gates) * candidates
    if isinstance(segment_length, int):
        run_length = 1
        while run_length < segment_length:
            run_length, decays, additions = _doubled(run_length, decays, additions)
    else:
        _, decays, additions = ops.while_loop(
            lambda run_length, *_: run_length < segment_length, _doubled, (1, decays, additions)
        )
    first = ops.expand_dims(ops.cast(cell_state, decays.dtype), 1)  # [B, 1, D]
    return decays * first + additions


def _doubled(run_length, decays, additions):
    """Combines the run that ends at each position with the run before it."""
    positions = ops.arange(ops.shape(decays)[1], dtype="int32")
    has_run_before = ops.reshape(positions >= run_length, [1, -1, 1])
    before = ops.roll(additions, run_length, axis=1)
    totals = additions + decays * ops.where(has_run_before, before, ops.zeros_like(before))
    before = ops.roll(decays, run_length, axis=1)
    decays = decays * ops.where(has_run_before, before, ops.ones_like(before))
    return 2 * run_length, decays, totals
