"""Models of evaluations: lengths and precision of their own, weights of their own or of others."""

from collections.abc import Mapping

import keras

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.evaluation.reading_order import AnyModelConfig
from txl_tf.evaluation.unallocated_variables import unallocated_variables
from txl_tf.models import create_model
from txl_tf.models.language_model import LanguageModel

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

_LENGTHS = ("segment_length", "memory_length", "clamp_length", "same_length", "same_length_keys")


def config_of_evaluation(config: AnyModelConfig, evaluation: EvaluationConfig) -> AnyModelConfig:
    """Returns a model's configuration with the lengths of an evaluation, where they are set."""
    lengths = {name: getattr(evaluation, name) for name in _LENGTHS}
    return config.replace(**{name: each for name, each in lengths.items() if each is not None})


def create_evaluation_model(
    config: AnyModelConfig,
    dtype_policy: str,
    strategy: "tf.distribute.Strategy | None" = None,
    variables: Mapping[str, keras.Variable] | None = None,
) -> keras.Model:
    """Builds a model; with `variables` it reads existing ones, on TensorFlow."""
    if variables is not None and keras.backend.backend() == "tensorflow":
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


def model_in_policy(model: LanguageModel, dtype_policy: str) -> LanguageModel:
    """Returns a model that computes with the weights of `model` in a Keras dtype policy.

    It is the model itself, with what Keras or its user changed in its layers, if the policies
    are equal. Otherwise only a model as `create_model` builds it has an equal one.
    """
    if model.dtype_policy.name == dtype_policy:
        return model
    created = create_model(model.config, dtype=dtype_policy)
    weights = {variable.path: variable for variable in model.weights}
    is_equal = type(model) is type(created) and [
        (variable.path, variable.shape, variable.dtype) for variable in created.weights
    ] == [(path, variable.shape, variable.dtype) for path, variable in weights.items()]
    if not is_equal:
        raise ValueError(
            "A model whose layers were changed, as by `quantize`, `enable_lora` or a subclass, is "
            "only read in its own dtype policy: set `dtype_policy` of the `EvaluationConfig` to "
            f"{model.dtype_policy.name!r}. Received: dtype_policy={dtype_policy!r}"
        )
    return create_evaluation_model(model.config, dtype_policy, variables=weights)
