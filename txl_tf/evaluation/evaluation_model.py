"""Models of evaluations: lengths and precision of their own, weights of their own or of others."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.model import AnyModelConfig
from txl_tf.evaluation.unallocated_variables import unallocated_variables
from txl_tf.imports import is_on_jax, tensorflow as tf
from txl_tf.models import create_model
from txl_tf.models.language_model import LanguageModel

_REPORTED = ("dtype_policy", "dynamic_learning_rate", "dynamic_decay")
_LENGTHS = ("segment_length", "memory_length", "clamp_length", "same_length", "same_length_keys")


def config_of_evaluation(config: AnyModelConfig, evaluation: EvaluationConfig) -> AnyModelConfig:
    """Returns a model's configuration with the lengths of an evaluation, where they are set."""
    lengths = {name: getattr(evaluation, name) for name in _LENGTHS}
    return config.replace(**{name: each for name, each in lengths.items() if each is not None})


def evaluation_conditions(config: AnyModelConfig, evaluation: EvaluationConfig) -> dict[str, Any]:
    """Returns the fields of `EvaluationResult` that are evaluation settings."""
    return {
        "segment_length": config.segment_length,
        "memory_length": config.effective_memory_length,
        "clamp_length": config.clamp_length,
        "same_length": config.same_length,
        "same_length_keys": config.same_length_keys if config.same_length else None,
        **{name: getattr(evaluation, name) for name in _REPORTED},
    }


def create_evaluation_model(
    config: AnyModelConfig,
    dtype_policy: str,
    strategy: "tf.distribute.Strategy | None" = None,
    variables: Mapping[str, keras.Variable] | None = None,
) -> keras.Model:
    """Builds a model; with `variables` it reads existing ones, on TensorFlow."""
    if variables is not None:
        model = _model_to_share(config, dtype_policy)
        share_variables(model.weights, variables)
        return model
    if strategy is None:
        return create_model(config, dtype=dtype_policy)
    with strategy.scope():
        return create_model(config, dtype=dtype_policy)


def _model_to_share(config: AnyModelConfig, dtype_policy: str) -> LanguageModel:
    """Builds a model for `share_variables`."""
    if is_on_jax():
        return create_model(config, dtype=dtype_policy)
    # On the host and without memory: its own variables are replaced at once.
    with tf.device("CPU:0"), unallocated_variables():
        return create_model(config, dtype=dtype_policy)


def share_variables(
    weights: Iterable[keras.Variable], variables: Mapping[str, keras.Variable]
) -> None:
    """Lets weights read the variables of others, by path, on TensorFlow; see `copy_values`."""
    if not is_on_jax():
        for weight in weights:
            # Private: Keras 3.15 has no public way to read the value of another variable.
            weight._initialize(variables[weight.path].value)


def copy_values(
    weights: Iterable[keras.Variable], variables: Mapping[str, keras.Variable] | None
) -> None:
    """Copies the values of others, by path, on JAX, where models cannot share variables."""
    if variables is None or not is_on_jax():
        return
    for weight in weights:
        if (source := variables[weight.path]) is not weight:
            weight.assign(source.value)


def model_in_policy(model: LanguageModel, dtype_policy: str) -> LanguageModel:
    """Returns a model that computes with the weights of `model` in a Keras dtype policy.

    It is the model itself, with what Keras or its user changed in its layers, if the policies
    are equal. Otherwise only a model as `create_model` builds it has an equal one.
    """
    if model.dtype_policy.name == dtype_policy:
        return model
    other = _model_to_share(model.config, dtype_policy)
    specs = [
        [(each.path, each.shape, each.dtype) for each in one.weights] for one in (model, other)
    ]
    if type(model) is not type(other) or specs[0] != specs[1]:
        raise ValueError(
            "A model whose layers were changed, as by `quantize`, `enable_lora` or a subclass, is "
            "only read in its own dtype policy: set `dtype_policy` of the `EvaluationConfig` to "
            f"{model.dtype_policy.name!r}. Received: dtype_policy={dtype_policy!r}"
        )
    share_variables(other.weights, {variable.path: variable for variable in model.weights})
    return other
