"""Rematerialisation: recomputes a layer in the backward pass.

Chen et al. (2016), "Training deep nets with sublinear memory cost".
"""

import keras
from keras import ops

_NEVER = 0x7FA5C31D
"""Bits of one float32 among millions that are not a number; no arithmetic makes it."""


def rematerialized_call(layer, tensors, constants):
    """Calls a layer of which the backward pass keeps the arguments only.

    Compilers look for what a program computes twice and keep the first result,
    which would undo this. `keras.remat` holds on JAX. On TensorFlow it is
    `tf.recompute_grad`, which XLA sees through, so that here the second
    computation reads arguments that hang on the gradient: see `_waiting_for`.

    Args:
        layer: built `keras.layers.Layer` that returns one float tensor, and
            whose call draws no random numbers but by a seed in `tensors`.
        tensors: dict of str to tensor or `None`. Arguments of the call of which
            something large is computed. Float tensors get gradients.
        constants: dict. Further arguments of the call; they get no gradients.

    Returns:
        Float tensor that the layer returns.

    References:
     - [Chen et al., 2016](https://arxiv.org/abs/1604.06174)
    """
    weights = layer.weights
    # Read out here, the layer is a function of tensors: a distributed variable has
    # no meaning in the gradient of a function.
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
    import tensorflow as tf

    # Keras hands out the variables themselves, where it need not cast.
    values, given = tf.nest.map_structure(tf.convert_to_tensor, (values, given))
    floats = [index for index, tensor in enumerate(given) if tensor.dtype.is_floating]

    def merged(float_tensors):
        return [
            float_tensors[floats.index(index)] if index in floats else tensor
            for index, tensor in enumerate(given)
        ]

    @tf.custom_gradient
    def run(*differentiated):
        # The tape around this call must not keep what is computed inside.
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

    Added is a 0 of which no compiler can prove that it is one, as it would be
    a 1 if the gradient began with a certain not-a-number. XLA has an operation
    for this, `OptimizationBarrier`, which TensorFlow without XLA has not.
    """
    import tensorflow as tf

    first = tf.cast(tf.reshape(gradient, [-1])[0], tf.float32)
    is_never = tf.equal(tf.bitcast(first, tf.int32), _NEVER)
    return [tensor + tf.cast(is_never, tensor.dtype) for tensor in tensors]
