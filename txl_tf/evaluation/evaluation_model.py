"""Models for evaluation, whose lengths and precision may differ from those of training.

A model has its own weights, or it reads variables of another model. On TensorFlow it shares these
variables, see `share_variables`. On JAX it has copies, which `copy_values` renews before a text.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.model import AnyModelConfig
from txl_tf.evaluation.unallocated_variables import unallocated_variables
from txl_tf.imports import is_on_jax, tensorflow as tf
from txl_tf.models import create_model
from txl_tf.models.language_model import LanguageModel

_REPORTED = ("dtype_policy", "dynamic_learning_rate", "dynamic_decay")
_LENGTHS = ("segment_length", "memory_length", "clamp_length", "same_length", "same_length_keys")


def config_of_evaluation(config: AnyModelConfig, evaluation: EvaluationConfig) -> AnyModelConfig:
    """Returns a model's configuration, in which the lengths set by an evaluation replace others."""
    lengths = {name: getattr(evaluation, name) for name in _LENGTHS}
    return config.replace(**{name: each for name, each in lengths.items() if each is not None})


def evaluation_conditions(config: AnyModelConfig, evaluation: EvaluationConfig) -> dict[str, Any]:
    """Returns the fields of `EvaluationResult` that are settings of the model or the evaluation."""
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
    """Builds a model, which shares existing `variables` if they are passed, by path."""
    if variables is not None:
        model = _model_to_share(config, dtype_policy)
        share_variables(model.weights, variables)
        return model
    if strategy is None:
        return create_model(config, dtype=dtype_policy)
    with strategy.scope():
        return create_model(config, dtype=dtype_policy)


def _model_to_share(config: AnyModelConfig, dtype_policy: str) -> LanguageModel:
    """Builds a model whose variables `share_variables` or `copy_values` will replace."""
    if is_on_jax():
        return create_model(config, dtype=dtype_policy)
    # The own variables take neither memory of an accelerator nor of the host, because they are
    # replaced at once.
    with tf.device("CPU:0"), unallocated_variables():
        return create_model(config, dtype=dtype_policy)


def share_variables(
    weights: Iterable[keras.Variable], variables: Mapping[str, keras.Variable]
) -> None:
    """Makes weights read other variables by path; does nothing on JAX, see `copy_values`."""
    if not is_on_jax():
        for weight in weights:
            # Private: Keras 3.15 has no public way to read the value of another variable.
            weight._initialize(variables[weight.path].value)


def copy_values(
    weights: Iterable[keras.Variable], variables: Mapping[str, keras.Variable] | None
) -> None:
    """Copies values by path on JAX, where models cannot share variables; else does nothing."""
    if variables is None or not is_on_jax():
        return
    for weight in weights:
        if (source := variables[weight.path]) is not weight:
            weight.assign(source.value)


def model_in_policy(model: LanguageModel, dtype_policy: str) -> LanguageModel:
    """Returns a model that computes with the weights of `model` in a Keras dtype policy.

    If `model` has this policy, it is returned itself, with any changes that Keras or its user made
    to its layers. Otherwise a second model is built, which needs the classes and weights that
    `create_model` gives a model. Raises ValueError if `model` has others.
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
