"""Functions as programs of the backend, and parts of a layer that XLA compiles on TensorFlow.

On a processor, oneDNN has faster products, and XLA is faster where each number is visited
once: dropout, residuals, normalisation, softmax.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from txl_tf.imports import tensorflow as tf

# Parts by function and configuration; None outside `compiling_parts`.
_PARTS: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
    "compiled_parts", default=None
)


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

    Results are unchanged, and its gradients are compiled too. Arguments are tensors and Python
    numbers, which become constants; random numbers come only from seed arguments. `variables` are
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
    """Returns a function of tensors as a program, traced once for all tensors of their shapes.

    It reads the weights of `model` as they are when it is called. XLA always compiles it on JAX,
    and with `jit_compile` on TensorFlow.
    """
    if keras.backend.backend() == "tensorflow":
        return tf.function(function, jit_compile=jit_compile, autograph=False)
    import jax

    weights = model.weights

    @jax.jit
    def run(values: list[Any], arguments: Any, named: Any) -> Any:
        with keras.StatelessScope(list(zip(weights, values, strict=True))):
            return function(*arguments, **named)

    return lambda *arguments, **named: run([each.value for each in weights], arguments, named)
