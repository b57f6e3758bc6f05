"""Compiles layers and functions, keeps products exact, and recomputes layers to save memory.

On a CPU, oneDNN is faster at products, and XLA at operations that visit each number once:
dropout, residuals, normalisation, softmax.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
from keras import ops

from txl_tf.imports import is_on_jax, jax, tensorflow as tf

# Parts by function and configuration; None outside `compiling_parts`.
_PARTS: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
    "compiled_parts", default=None
)
# Bits of a float32 NaN, one of millions, that no arithmetic produces.
_NEVER = 0x7FA5C31D


@contextlib.contextmanager
def compiling_parts(compiles: bool = True) -> Iterator[None]:
    """Compiles each `compiled_part` called in the block, on the TensorFlow backend.

    It is for steps that are traced as a graph and not compiled as a whole. The innermost context
    decides.
    """
    token = _PARTS.set({} if compiles and keras.backend.backend() == "tensorflow" else None)
    try:
        yield
    finally:
        _PARTS.reset(token)


def compiled_part(
    function: Callable[..., Any], variables: Sequence[keras.Variable] = ()
) -> Callable[..., Any]:
    """Returns a function as one compiled operation, but unchanged outside `compiling_parts`.

    Results are unchanged, and its gradients are compiled too. Arguments are tensors, or Python
    numbers taken as constants; random numbers come only from seed arguments. `variables` are
    the ones that a method of a layer reads. A method is compiled once for all layers of its class
    and configuration, since compiling takes most of the time before the first step.
    """
    parts = _PARTS.get()
    if parts is None:
        return function
    layer = getattr(function, "__self__", None)
    if not isinstance(layer, keras.layers.Layer):
        return tf.function(function, jit_compile=True, autograph=False)
    key = (function.__func__, repr({**layer.get_config(), "name": None}))
    if key not in parts:

        def of_any_layer(values: list[Any], *arguments: Any) -> Any:
            with keras.StatelessScope(list(zip(variables, values, strict=True))):
                return function(*arguments)

        parts[key] = tf.function(of_any_layer, jit_compile=True, autograph=False)
    part, values = parts[key], [variable.value for variable in variables]
    return lambda *arguments: part(values, *arguments)


def compiled(
    function: Callable[..., Any], model: keras.Model, jit_compile: bool | None = None
) -> Callable[..., Any]:
    """Returns a function of tensors as a program, traced once for each set of shapes.

    It reads the weights of `model` as they are when it is called. XLA always compiles it on JAX,
    with float32 products that are not rounded, and with `jit_compile` on TensorFlow.
    """
    if keras.backend.backend() == "tensorflow":
        return tf.function(function, jit_compile=jit_compile, autograph=False)
    weights = model.weights

    @jax.jit
    def run(values: list[Any], arguments: Any, keyword_arguments: Any) -> Any:
        scope = keras.StatelessScope(list(zip(weights, values, strict=True)))
        with scope, exact_products_on_jax():
            return function(*arguments, **keyword_arguments)

    return lambda *arguments, **named: run([each.value for each in weights], arguments, named)


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Disables TF32 and other rounding in the block, so that float32 products are exact."""
    if is_on_jax():
        with exact_products_on_jax():
            yield
        return
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def exact_products_on_jax() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which JAX rounds no input of a float32 product, on a TPU or a GPU."""
    return jax.default_matmul_precision("highest") if is_on_jax() else contextlib.nullcontext()


def rematerialized_call(layer, tensors, constants):
    """Calls a layer so that the backward pass keeps only its arguments (Chen et al., 2016).

    Compilers merge equal computations and keep the first result, which would undo this. So
    `keras.remat` saves nothing on TensorFlow, nor with JAX on a CPU: XLA of JAX 0.10.2 took 12.25
    MiB for 16 blocks with it and without, and 5 MiB as here, where the second computation reads
    arguments that depend on the gradient, see `_waiting_for`. The layer must be built, return one
    float tensor, and draw only by a seed in `tensors`. Float `tensors` get gradients, `constants`
    do not.
    """
    weights = layer.weights
    # The layer becomes a function of tensors, because a gradient function cannot use distributed
    # variables.
    values = [ops.convert_to_tensor(weight) for weight in weights]
    names = [name for name, tensor in tensors.items() if tensor is not None]
    inputs = [ops.convert_to_tensor(tensors[name]) for name in names]

    def call(values, inputs):
        with keras.StatelessScope(list(zip(weights, values, strict=True))):
            return layer(**dict(zip(names, inputs, strict=True)), **constants)

    run = _call_on_jax if is_on_jax() else _call_on_tensorflow
    return run(call, values, inputs)


def _call_on_jax(call, values, inputs):
    run = jax.custom_vjp(call)

    def gradients_of(kept, gradient):
        values, inputs = kept
        return jax.vjp(call, values, _waiting_for(gradient, inputs))[1](gradient)

    run.defvjp(lambda *arguments: (call(*arguments), arguments), gradients_of)
    return run(values, inputs)


def _call_on_tensorflow(call, values, inputs):
    # Keras passes the variables themselves if no cast is needed.
    values, inputs = tf.nest.map_structure(tf.convert_to_tensor, (values, inputs))
    floats = [index for index, tensor in enumerate(inputs) if tensor.dtype.is_floating]

    def merge(float_tensors):
        return [
            float_tensors[floats.index(index)] if index in floats else tensor
            for index, tensor in enumerate(inputs)
        ]

    @tf.custom_gradient
    def run(*differentiated):
        # The tape around this call must not keep intermediate results.
        copies = [tf.stop_gradient(tensor) for tensor in differentiated]
        outputs = call(copies[: len(values)], merge(copies[len(values) :]))

        def gradients_of(gradient):
            with tf.GradientTape() as tape:
                tape.watch(differentiated)
                again = call(
                    differentiated[: len(values)],
                    _waiting_for(gradient, merge(differentiated[len(values) :])),
                )
            return tape.gradient(again, differentiated, gradient, tf.UnconnectedGradients.ZERO)

        return outputs, gradients_of

    return run(*values, *[inputs[index] for index in floats])


def _waiting_for(gradient, tensors):
    """Returns the tensors unchanged, but only once the gradient is known.

    It adds a 0 that no compiler can prove to be zero, as it would be 1 if the gradient began with
    one particular NaN. XLA's operation for this, `OptimizationBarrier`, does not exist in
    TensorFlow without XLA, and XLA for CPUs removes it.
    """
    first = ops.cast(ops.reshape(gradient, [-1])[0], "float32")
    is_never = ops.equal(ops.view(first, "int32"), _NEVER)
    return [tensor + ops.cast(is_never, tensor.dtype) for tensor in tensors]
