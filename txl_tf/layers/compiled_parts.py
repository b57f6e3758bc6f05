"""Parts of a layer that XLA compiles while the products around them are TensorFlow's.

On a processor the products of oneDNN are faster than those of XLA, and XLA is faster at
all that goes over each number once: dropout, residuals, normalisation, softmax.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

# Parts by what they compute; None where nothing is compiled.
_PARTS: contextvars.ContextVar[dict[Any, Any] | None] = contextvars.ContextVar(
    "compiled_parts", default=None
)


@contextlib.contextmanager
def compiling_parts(compiles: bool = True) -> Iterator[None]:
    """Compiles each `compiled_part` that is called within, on the TensorFlow backend.

    For a step that is traced as a graph and not compiled as a whole.

    Args:
        compiles: bool. Whether it does; a context around it is overridden.
    """
    token = _PARTS.set({} if compiles and keras.backend.backend() == "tensorflow" else None)
    try:
        yield
    finally:
        _PARTS.reset(token)


def compiled_part(
    function: Callable[..., Any], variables: Sequence[keras.Variable] = ()
) -> Callable[..., Any]:
    """Returns a function of tensors as one compiled operation, within `compiling_parts`.

    Elsewhere it returns the function itself. Results are those of the function, its
    gradients are compiled too. A method is compiled once for all layers of its class
    and configuration: most of the time before a first step is that of compiling.

    Args:
        function: function of tensors and Python numbers, the latter constants of it. It
            draws nothing: seeds are arguments.
        variables: all variables that a method of a layer reads.
    """
    parts = _PARTS.get()
    if parts is None:
        return function
    import tensorflow as tf

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
