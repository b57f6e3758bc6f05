"""The model of an evaluation, with weights of its own or those of a run."""

from collections.abc import Mapping

import keras
import tensorflow as tf

from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.qrnn_config import QRNNConfig
from txl_tf.models.create_model import create_model
from txl_tf.unallocated_variables import unallocated_variables


def create_evaluation_model(
    config: ModelConfig | LSTMConfig | QRNNConfig,
    dtype_policy: str,
    strategy: tf.distribute.Strategy | None = None,
    variables: Mapping[str, keras.Variable] | None = None,
) -> keras.Model:
    """Builds a model, which may read variables that are there already.

    Args:
        config: `ModelConfig`, `LSTMConfig` or `QRNNConfig`.
        dtype_policy: str. Keras dtype policy.
        strategy: optional `tf.distribute.Strategy` that new weights are made
            under.
        variables: optional mapping of the path of every weight to a Keras
            variable. The model reads it and makes none of its own.

    Returns:
        The model.
    """
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
