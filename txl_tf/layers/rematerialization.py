"""Rematerialisation, which recomputes a layer in the backward pass.

Chen et al. (2016), "Training deep nets with sublinear memory cost".
"""

import keras
from keras import ops

from txl_tf.imports import tensorflow as tf

_NEVER = 0x7FA5C31D
"""Bits of one float32 NaN among millions, which no arithmetic produces."""


def rematerialized_call(layer, tensors, constants):
    """Calls a layer so that the backward pass keeps only its arguments.

    Compilers merge equal computations and keep the first result, which would undo this.
    `keras.remat` is safe on JAX. On TensorFlow it is `tf.recompute_grad`, which XLA sees through;
    so here the second computation reads arguments that depend on the gradient, see
    `_waiting_for`. The built layer returns one float tensor and draws random numbers only by a
    seed in `tensors`. Float `tensors` get gradients, `constants` do not.
    """
    weights = layer.weights
    # Reading the values makes the layer a function of tensors: a distributed variable has no
    # meaning in the gradient of a function.
    values = [ops.convert_to_tensor(weight) for weight in weights]
    names = [name for name, tensor in tensors.items() if tensor is not None]
    given = [ops.convert_to_tensor(tensors[name]) for name in names]

    def call(values, given):
        with keras.StatelessScope(list(zip(weights, values, strict=True))):
            return layer(**dict(zip(names, given, strict=True)), **constants)

    if keras.backend.backend() == "tensorflow":
        return _call_on_tensorflow(call, values, given)
    return keras.remat(call)(values, given)


def _call_on_tensorflow(call, values, given):
    # Keras passes the variables themselves if no cast is needed.
    values, given = tf.nest.map_structure(tf.convert_to_tensor, (values, given))
    floats = [index for index, tensor in enumerate(given) if tensor.dtype.is_floating]

    def merged(float_tensors):
        return [
            float_tensors[floats.index(index)] if index in floats else tensor
            for index, tensor in enumerate(given)
        ]

    @tf.custom_gradient
    def run(*differentiated):
        # The tape around this call must not keep intermediate results.
        fixed = [tf.stop_gradient(tensor) for tensor in differentiated]
        outputs = call(fixed[: len(values)], merged(fixed[len(values) :]))

        def gradients_of(gradient):
            with tf.GradientTape() as tape:
                tape.watch(differentiated)
                again = call(
                    differentiated[: len(values)],
                    _waiting_for(gradient, merged(differentiated[len(values) :])),
                )
            return tape.gradient(again, differentiated, gradient, tf.UnconnectedGradients.ZERO)

        return outputs, gradients_of

    return run(*values, *[given[index] for index in floats])


def _waiting_for(gradient, tensors):
    """Returns the tensors unchanged, but only once the gradient is known.

    It adds a 0 that no compiler can prove to be zero, as it would be 1 if the gradient began with
    one particular NaN. XLA's operation for this, `OptimizationBarrier`, does not exist in
    TensorFlow without XLA.
    """
    first = tf.cast(tf.reshape(gradient, [-1])[0], tf.float32)
    is_never = tf.equal(tf.bitcast(first, tf.int32), _NEVER)
    return [tensor + tf.cast(is_never, tensor.dtype) for tensor in tensors]
