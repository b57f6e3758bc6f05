"""Settings of a run that begins from a trained model: the source's, and defaults for few steps."""

import argparse
import math
from typing import TYPE_CHECKING, Any

from txl_tf.config.experiment import ExperimentConfig, OptimizerConfig, TrainingConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.config.task import TaskConfig
from txl_tf.data.manifest import Manifest
from txl_tf.errors import UsageError
from txl_tf.model_folder import open_model

from .arguments import fit_vocabulary, load_experiment, overridden_settings, override
from .initial_weights import overrides_of

if TYPE_CHECKING:
    from txl_tf.tasks.examples import TaskData

MAX_EPOCHS = 100_000
_DEFAULT_EPOCHS = 3
_BATCH_SIZE = 32
_LEARNING_RATE = 2e-4
_WARMUP_SHARE = 0.1
# Placeholder until the steps are computed from the examples; no run is as long.
_UNKNOWN_STEPS = 2**30


def finetuning_experiment(
    arguments: argparse.Namespace, data: "TaskData", begun: ExperimentConfig | None
) -> ExperimentConfig:
    """Returns the settings of a fine-tuning run; a run that was begun keeps its own.

    A new run takes the model of `--init-from` or `--config`; without either it is a UsageError.
    Steps, warm-up and periods follow from the epochs, unless `--set` names them.
    """
    overrides = overrides_of(arguments)
    if begun is not None:
        experiment = override(begun, overrides)
        if arguments.epochs is not None:
            num_steps = _steps_of(arguments.epochs, data, experiment)
            experiment = override(experiment, [f"training.num_steps={num_steps}"])
        return experiment
    begin = _begin(arguments, data, overrides)
    num_steps = _steps_of(arguments.epochs or _DEFAULT_EPOCHS, data, begin)
    if "training.num_steps" in overridden_settings(overrides):
        num_steps = begin.training.num_steps
    each_epoch = min(_steps_of(1, data, begin), num_steps)
    followed = {
        "training.evaluate_every_steps": each_epoch,
        "training.checkpoint_every_steps": each_epoch,
        "training.steps_per_loop": min(100, each_epoch),
    }
    return _of_length(begin, num_steps, overrides, followed)


def further_training(
    source: ExperimentConfig, overrides: list[str], manifest: Manifest | None
) -> ExperimentConfig:
    """Returns the settings of language modelling from a trained model, without `--config`.

    Keeps the source's model and evaluation, with the vocabulary of the data. Trains three passes
    over the data, unless `--set` names the steps.
    """
    values = _defaults(source.model) | {"evaluation": source.evaluation.to_dict()}
    size = None if manifest is None else manifest.vocabulary_size
    fit_vocabulary(values, {}, overrides, size)
    begin = override(ExperimentConfig.from_dict(values), overrides)
    if manifest is None or "training.num_steps" in overridden_settings(overrides):
        num_steps = begin.training.num_steps
    else:
        step_tokens = begin.training.global_batch_size * begin.model.segment_length
        num_tokens = manifest.split("train").tokens if "train" in manifest.split_names else 0
        num_steps = max(_DEFAULT_EPOCHS * num_tokens // step_tokens, 1)
    return _of_length(begin, num_steps, overrides)


def _of_length(
    begin: ExperimentConfig,
    num_steps: int,
    overrides: list[str],
    followed: dict[str, int] | None = None,
) -> ExperimentConfig:
    """Sets the steps, the warm-up and the values in `followed`, unless `--set` names them."""
    given = overridden_settings(overrides)
    values = {
        "training.num_steps": num_steps,
        "optimizer.warmup_steps": int(_WARMUP_SHARE * num_steps),
        **(followed or {}),
    }
    changes = [f"{name}={value}" for name, value in values.items() if name not in given]
    return override(begin, changes)


def _defaults(model: ModelConfig | LSTMConfig | QRNNConfig) -> dict[str, Any]:
    training = TrainingConfig(global_batch_size=_BATCH_SIZE, num_steps=_UNKNOWN_STEPS)
    optimizer = OptimizerConfig(
        learning_rate=_LEARNING_RATE, final_learning_rate_fraction=0.0, clip_norm=1.0
    )
    return {
        "model": model.to_dict(),
        "training": training.to_dict(),
        "optimizer": optimizer.to_dict(),
    }


def _begin(
    arguments: argparse.Namespace, data: "TaskData", overrides: list[str]
) -> ExperimentConfig:
    """Returns the settings before the steps are known."""
    if arguments.init_from is not None:
        if arguments.config is not None:
            raise UsageError("The model is that of --init-from.", where="--config")
        model = open_model(arguments.init_from, arguments.init_step).description.model
    elif arguments.config is not None:
        model = load_experiment(arguments.config, []).model
    else:
        raise UsageError(
            "A new run needs a model.",
            where="--init-from",
            remedy="Name the folder of a trained model, or with --config that of a new one.",
        )
    values = _defaults(model) | {"task": _task(data).to_dict()}
    return override(ExperimentConfig.from_dict(values), overrides)


def _task(data: "TaskData") -> TaskConfig:
    margin = None
    if data.kind == "span" and any(not each.is_answerable for each in data.splits["train"]):
        margin = 0.0
    can_be_pairs = data.kind in ("classification", "regression")
    return TaskConfig(
        kind=data.kind,
        has_pairs=can_be_pairs and any(len(each.texts) > 1 for each in data.splits["train"]),
        labels=data.labels or None,
        metric=data.metrics[0],
        answer_margin=margin,
    )


def _steps_of(num_epochs: int, data: "TaskData", experiment: ExperimentConfig) -> int:
    num_rows = experiment.training.global_batch_size
    return max(math.ceil(num_epochs * len(data.splits["train"]) / num_rows), 1)
