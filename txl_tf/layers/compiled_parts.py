"""Parts of a layer that XLA compiles while the products around them are TensorFlow's.

On a processor the products of oneDNN are faster than those of XLA, and XLA is faster at
all that goes over each number once: dropout, residuals, normalisation, softmax.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import keras

_COMPILES = contextvars.ContextVar("compiles_parts", default=False)


@contextlib.contextmanager
def compiling_parts(compiles: bool = True) -> Iterator[None]:
    """Compiles each `compiled_part` that is called within, on the TensorFlow backend.

    For a step that is traced as a graph and not compiled as a whole.

    Args:
        compiles: bool. Whether it does; a context around it is overridden.
    """
    token = _COMPILES.set(compiles and keras.backend.backend() == "tensorflow")
    try:
        yield
    finally:
        _COMPILES.reset(token)


def compiled_part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of tensors as one compiled operation, within `compiling_parts`.

    Elsewhere it returns the function itself. Results are those of the function, its
    gradients are compiled too.

    Args:
        function: function of tensors and Python numbers, the latter constants of it.
    """
    if not _COMPILES.get():
        return function
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)
