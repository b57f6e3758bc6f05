"""Model for an evaluation, made without a second copy of the weights."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.models import create_model

# Smaller ones save too little, and may be read while a model is built.
_SMALLEST_BYTES = 2**16
_ALIGNMENT_BYTES = 64


@contextlib.contextmanager
def unallocated_variables() -> Iterator[None]:
    """Creates large variables from memory pages that are never written, in the block.

    A compiler reads only the shape and type of variables. Weights and the two means of Adam for
    838 million parameters would be 10 GB. Here they are arrays of zeros, whose pages the
    operating system supplies on first use, which never happens. Initial values are traced for
    their shape and never computed.
    """

    def create(next_creator: Callable[..., tf.Variable], **arguments: Any) -> tf.Variable:
        spec = _spec_of(arguments["initial_value"])
        num_bytes = spec.shape.num_elements() * spec.dtype.size
        if spec.dtype.is_floating and num_bytes >= _SMALLEST_BYTES:
            arguments["initial_value"] = _untouched_zeros(spec)
        return next_creator(**arguments)

    with tf.variable_creator_scope(create):
        yield


def _spec_of(initial_value: Any) -> tf.TensorSpec:
    if callable(initial_value):
        with tf.Graph().as_default():
            return tf.TensorSpec.from_tensor(tf.convert_to_tensor(initial_value()))
    return tf.TensorSpec.from_tensor(tf.convert_to_tensor(initial_value))


def _untouched_zeros(spec: tf.TensorSpec) -> tf.Tensor:
    num_bytes = spec.shape.num_elements() * spec.dtype.size
    pages = np.zeros(num_bytes + _ALIGNMENT_BYTES, np.uint8)
    first = -pages.ctypes.data % _ALIGNMENT_BYTES
    # NumPy lacks some types of TensorFlow, so the bits are passed as integers.
    numbers = pages[first : first + num_bytes].view(f"uint{8 * spec.dtype.size}")
    # All other conversions from NumPy copy, and a copy touches the pages.
    bits = tf.experimental.dlpack.from_dlpack(numbers.reshape(spec.shape).__dlpack__())
    return tf.bitcast(bits, spec.dtype)


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Disables TF32 in the block, so that float32 products are exact."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def create_evaluation_model(
    config: ModelConfig | LSTMConfig | QRNNConfig,
    dtype_policy: str,
    strategy: tf.distribute.Strategy | None = None,
    variables: Mapping[str, keras.Variable] | None = None,
) -> keras.Model:
    """Builds a model; with `variables` it reads existing ones."""
    if variables is not None:
        # On the host and without memory: its own variables are replaced at once.
        with tf.device("CPU:0"), unallocated_variables():
            model = create_model(config, dtype=dtype_policy)
        for variable in model.weights:
            variable._initialize(variables[variable.path].value)
        return model
    if strategy is None:
        return create_model(config, dtype=dtype_policy)
    with strategy.scope():
        return create_model(config, dtype=dtype_policy)


def evaluation_conditions(
    config: ModelConfig | LSTMConfig | QRNNConfig, evaluation: EvaluationConfig
) -> dict[str, Any]:
    """Returns the fields of `EvaluationResult` that are evaluation settings."""
    return {
        "segment_length": config.segment_length,
        "memory_length": config.effective_memory_length,
        "clamp_length": config.clamp_length,
        "same_length": config.same_length,
        "same_length_keys": config.same_length_keys if config.same_length else None,
        "dtype_policy": evaluation.dtype_policy,
        "window_stride_tokens": evaluation.window_stride_tokens,
        "dynamic_learning_rate": evaluation.dynamic_learning_rate,
        "dynamic_decay": evaluation.dynamic_decay,
        "dynamic_statistics_segments": evaluation.dynamic_statistics_segments,
    }
