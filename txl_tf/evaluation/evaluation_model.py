"""Model of an evaluation, made without a second copy of the weights."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.models.language_model import create_model

# Smaller ones are not worth it, and tensors of them may be read while a model is built.
_SMALLEST_BYTES = 2**16
_ALIGNMENT_BYTES = 64


@contextlib.contextmanager
def unallocated_variables() -> Iterator[None]:
    """Creates large variables of memory pages that are never written, in the block.

    A compiler asks variables for their shape and type only. Weights and the two
    means of Adam for 838 million parameters would be 10 GB, so they are arrays
    of zeros whose pages the operating system supplies when they are first
    touched, which nothing does. Initial values are traced for their shape and
    never computed.
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
    # Not every type of TensorFlow's is one of NumPy's, so the bits go over as integers.
    numbers = pages[first : first + num_bytes].view(f"uint{8 * spec.dtype.size}")
    # Every other way from NumPy to TensorFlow copies, and a copy touches the pages.
    bits = tf.experimental.dlpack.from_dlpack(numbers.reshape(spec.shape).__dlpack__())
    return tf.bitcast(bits, spec.dtype)


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Multiplies float32 numbers exactly in the block, where TensorFlow would round to TF32."""
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
    """Builds a model, which may read variables that are there already."""
    if variables is not None:
        # Made on the host and without memory: its own are put aside at once.
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
    """Returns the fields of `EvaluationResult` that are settings of an evaluation."""
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
