"""Tracing of the functions of an export."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def traced_once(function: Callable[..., Any], specs: list[Any]) -> Any:
    """Returns a part of the graph that several signatures share.

    However many call it, it is in the export once, which makes the file much
    smaller.

    Args:
        function: function of tensors.
        specs: list of structures of `tf.TensorSpec`.

    Returns:
        A `tf.function`.
    """
    return tf.function(function, input_signature=specs, autograph=False)


def signature(function: Callable[..., Any], specs: list[tf.TensorSpec]) -> Any:
    """Returns a signature: a function with named inputs of open shapes.

    Args:
        function: function of tensors that returns a dict of tensors.
        specs: list of `tf.TensorSpec` with names, in the order of the
            function's arguments.

    Returns:
        A `tf.function`.
    """

    def signature_function(*tensors):
        return function(*tensors)

    return tf.function(signature_function, input_signature=specs, autograph=False)
