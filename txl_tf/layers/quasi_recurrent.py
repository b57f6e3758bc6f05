"""Quasi-recurrent layer: a convolution over time, then a recurrent pooling.

Shape letters used in this module: B rows, T segment length, C input width,
D output width.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.feed_forward import normal_unless


@keras.saving.register_keras_serializable(package="txl_tf")
class QuasiRecurrent(keras.layers.Layer):
    """A QRNN layer of filter width 2 with fo-pooling.

    Bradbury et al. (2017), Section 2. Candidates and gates depend on the
    inputs `x` alone, of this position and the one before:

        z = tanh(x[t-1] Wz' + x[t] Wz + bz)
        f = sigmoid(x[t-1] Wf' + x[t] Wf + bf)
        o = sigmoid(x[t-1] Wo' + x[t] Wo + bo)

    so they are one product for all positions. Only the pooling is recurrent, and it works on each
    channel separately:

        c[t] = f * c[t-1] + (1 - f) * z
        h[t] = o * c[t]

    No position sees a later one. At the start of a segment, `x[t-1]` and `c[t-1]` come from the
    end of the previous one. Gates and cell states are at least float32 under any policy, because
    rounding in half precision would erase a long memory.

    Args:
        units: int. Output width `D`.
        return_state: bool. If `True`, the next states are returned too. Defaults to `False`.
        kernel_initializer: initializer of the kernel. Defaults to a normal
            distribution of stddev 0.02. Biases start at 0.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, T, C)`.
        previous_input: optional float tensor `(B, C)`. The last input of the
            segment before; zeros by default.
        cell_state: optional float tensor `(B, D)`. The last cell state of the
            segment before; zeros by default.

    Returns:
        Float tensor `(B, T, D)`. With `return_state` a tuple of this tensor, the next
        `previous_input` `(B, C)` and the next `cell_state` `(B, D)`, both at least float32.

    Raises:
        ValueError: If `units` is not positive.

    References:
     - [Bradbury et al., 2017](https://arxiv.org/abs/1611.01576)
    """

    def __init__(self, units, return_state=False, kernel_initializer=None, **kwargs):
        # Autocasting would round the given cell state.
        super().__init__(autocast=False, **kwargs)
        if units <= 0:
            raise ValueError(f"`units` must be positive. Received: units={units}")
        self.units = units
        self.return_state = return_state
        self.kernel_initializer = normal_unless(kernel_initializer)

    def build(self, inputs_shape, previous_input_shape=None, cell_state_shape=None):
        self.kernel = self.add_weight(
            shape=(2, inputs_shape[-1], 3 * self.units),
            initializer=self.kernel_initializer,
            name="kernel",
        )
        self.bias = self.add_weight(
            shape=(3 * self.units,), initializer="zeros", autocast=False, name="bias"
        )

    def call(self, inputs, previous_input=None, cell_state=None):
        inputs = ops.cast(inputs, self.compute_dtype)
        if previous_input is None:
            previous_input = ops.zeros_like(inputs[:, 0])
        candidates, forget_gates, output_gates = self._gates(inputs, previous_input)
        if cell_state is None:
            cell_state = ops.zeros_like(candidates[:, 0])
        cells = _pool(candidates, forget_gates, cell_state)  # [B, T, D]
        outputs = ops.cast(output_gates * cells, self.compute_dtype)
        if not self.return_state:
            return outputs
        return outputs, functional.at_least_float32(inputs[:, -1]), cells[:, -1]

    def _gates(self, inputs, previous_input):
        """Returns candidates `z` and gates `f` and `o`: three tensors `(B, T, D)`."""
        first = ops.expand_dims(ops.cast(previous_input, self.compute_dtype), 1)
        inputs_before = ops.concatenate([first, inputs[:, :-1]], axis=1)  # [B, T, C]
        kernel = ops.cast(self.kernel, self.compute_dtype)
        summed = ops.matmul(inputs_before, kernel[0]) + ops.matmul(inputs, kernel[1])
        summed = functional.at_least_float32(summed)
        summed = summed + ops.cast(self.bias, summed.dtype)
        candidates, forget_gates, output_gates = ops.split(summed, 3, axis=-1)
        return ops.tanh(candidates), ops.sigmoid(forget_gates), ops.sigmoid(output_gates)

    def compute_output_spec(self, inputs, previous_input=None, cell_state=None):
        batch_size, segment_length, input_dim = inputs.shape
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        outputs = keras.KerasTensor((batch_size, segment_length, self.units), self.compute_dtype)
        if not self.return_state:
            return outputs
        return (
            outputs,
            keras.KerasTensor((batch_size, input_dim), dtype),
            keras.KerasTensor((batch_size, self.units), dtype),
        )

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "return_state": self.return_state,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


def _pool(candidates, forget_gates, cell_state):
    """Computes the cell states `(B, T, D)` of all positions in about `log2(T)` steps.

    The effect of a run of positions on the cell state before it is one decay and one addition, and
    two adjoining runs combine into one:

        f2 * (f1 * c + a1) + a2 = (f1 * f2) * c + (f2 * a1 + a2)

    Every step doubles the length of the run that ends at each position.
    """
    segment_length = ops.shape(candidates)[1]
    decays, additions = forget_gates, (1.0 - forget_gates) * candidates
    if isinstance(segment_length, int):
        run_length = 1
        while run_length < segment_length:
            run_length, decays, additions = _doubled(run_length, decays, additions)
    else:
        _, decays, additions = ops.while_loop(
            lambda run_length, *_: run_length < segment_length,
            _doubled,
            (1, decays, additions),
        )
    first = ops.expand_dims(ops.cast(cell_state, decays.dtype), 1)  # [B, 1, D]
    return decays * first + additions


def _doubled(run_length, decays, additions):
    """Combines the run that ends at each position with the run before it."""
    positions = ops.arange(ops.shape(decays)[1], dtype="int32")
    has_run_before = ops.reshape(positions >= run_length, [1, -1, 1])
    before = ops.roll(additions, run_length, axis=1)
    joined = additions + decays * ops.where(has_run_before, before, ops.zeros_like(before))
    before = ops.roll(decays, run_length, axis=1)
    decays = decays * ops.where(has_run_before, before, ops.ones_like(before))
    return 2 * run_length, decays, joined
