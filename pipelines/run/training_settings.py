"""Settings of a training run that begins from another model, where its user gives none."""

from typing import Any

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import AnyModelConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.config.training import TrainingConfig
from txl_tf.data.prepared_dataset import Manifest
from txl_tf.model_folder import ModelDescription

from ..configs import fit_vocabulary
from ..shell.arguments import overridden_settings, override

DEFAULT_EPOCHS = 3
_BATCH_SIZE = 32
_LEARNING_RATE = 2e-4
_WARMUP_SHARE = 0.1
# Placeholder until the steps are computed from the data; no run is as long.
_UNKNOWN_STEPS = 2**30


def further_training(
    source: ModelDescription, overrides: list[str], manifest: Manifest | None
) -> ExperimentConfig:
    """Returns the settings of language modelling from a trained model, without `--config`.

    Keeps the source's model and evaluation. Trains three passes over the data, unless `--set` names
    the steps.
    """
    values = default_settings(source.model) | {"evaluation": source.evaluation.to_dict()}
    size = None if manifest is None else manifest.vocabulary_size
    fit_vocabulary(values, {}, overrides, size)
    begin = override(ExperimentConfig.from_dict(values), overrides)
    if manifest is None or "training.num_steps" in overridden_settings(overrides):
        num_steps = begin.training.num_steps
    else:
        step_tokens = begin.training.global_batch_size * begin.model.segment_length
        num_tokens = manifest.split("train").tokens if "train" in manifest.split_names else 0
        num_steps = max(DEFAULT_EPOCHS * num_tokens // step_tokens, 1)
    return of_length(begin, num_steps, overrides)


def of_length(
    begin: ExperimentConfig,
    num_steps: int,
    overrides: list[str],
    followed: dict[str, int] | None = None,
) -> ExperimentConfig:
    """Sets the steps, the warm-up and the values in `followed`, unless `--set` names them."""
    settings = overridden_settings(overrides)
    values = {
        "training.num_steps": num_steps,
        "optimizer.warmup_steps": int(_WARMUP_SHARE * num_steps),
        **(followed or {}),
    }
    changes = [f"{name}={value}" for name, value in values.items() if name not in settings]
    return override(begin, changes)


def default_settings(model: AnyModelConfig) -> dict[str, Any]:
    """Returns the sections of an experiment that trains a model further, before its steps."""
    training = TrainingConfig(global_batch_size=_BATCH_SIZE, num_steps=_UNKNOWN_STEPS)
    optimizer = OptimizerConfig(learning_rate=_LEARNING_RATE, clip_norm=1.0)
    return {
        "model": model.to_dict(),
        "training": training.to_dict(),
        "optimizer": optimizer.to_dict(),
    }
