"""Settings and data of runs that begin from a trained model, or that train on a task.

Settings are the source's, with defaults for few steps.
"""

import argparse
import contextlib
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from txl_tf.config.experiment import ExperimentConfig, OptimizerConfig, TrainingConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.config.task import TaskConfig
from txl_tf.data.manifest import Manifest
from txl_tf.errors import MismatchError, UsageError
from txl_tf.model_folder import open_model

from .arguments import (
    fit_vocabulary,
    load_experiment,
    overridden_settings,
    override,
    overrides_of,
)

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.tokenizer import Tokenizer
    from txl_tf.evaluation.result import TaskResult
    from txl_tf.evaluation.task_evaluator import TaskEvaluator
    from txl_tf.tasks.examples import TaskData

MAX_EPOCHS = 100_000
_DEFAULT_EPOCHS = 3
_BATCH_SIZE = 32
_LEARNING_RATE = 2e-4
_WARMUP_SHARE = 0.1
# Placeholder until the steps are computed from the examples; no run is as long.
_UNKNOWN_STEPS = 2**30
_TRAIN, _VALID = "train", "valid"


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
            raise UsageError("The model comes from --init-from.", where="--config")
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
    if data.kind == "span" and any(not each.is_answerable for each in data.splits[_TRAIN]):
        margin = 0.0
    can_be_pairs = data.kind in ("classification", "regression")
    return TaskConfig(
        kind=data.kind,
        has_pairs=can_be_pairs and any(len(each.texts) > 1 for each in data.splits[_TRAIN]),
        labels=data.labels or None,
        metric=data.metrics[0],
        answer_margin=margin,
    )


def _steps_of(num_epochs: int, data: "TaskData", experiment: ExperimentConfig) -> int:
    num_rows = experiment.training.global_batch_size
    return max(math.ceil(num_epochs * len(data.splits[_TRAIN]) / num_rows), 1)


class FineTuningData:
    """Examples of a task with a split `train`, as `TrainingRun` reads and evaluates them.

    Examples that cannot be encoded, or none to train on, are a DataDamagedError; another vocabulary
    or label is a MismatchError.
    """

    folder = None
    language_text = None  # a task has no text that a language model could continue
    bytes_per_token = None  # the loss of a task is not a loss per token

    def __init__(
        self, data: "TaskData", tokenizer: "Tokenizer", experiment: ExperimentConfig
    ) -> None:
        from txl_tf.evaluation.task_evaluator import TaskEvaluator
        from txl_tf.tasks.encoding import ExampleEncoder, fingerprint_of
        from txl_tf.training.fine_tuning import ExamplePlan, ExampleReader, TaskObjective

        assert experiment.task is not None
        size, num_ids = experiment.model.vocabulary_size, tokenizer.vocabulary_size
        if num_ids != size:
            raise MismatchError(
                f"The tokenizer has {num_ids} token ids, the model {size}.",
                where="--vocabulary",
                remedy=f"--set model.vocabulary_size={num_ids}",
            )
        self.tokenizer = tokenizer
        self.vocabulary_files = tokenizer.vocabulary_files
        self.objective_class, self.create_evaluator = TaskObjective, TaskEvaluator
        encoder = ExampleEncoder(experiment.task, tokenizer)
        names = [name for name in (_TRAIN, _VALID) if name in data.splits]
        self._encoded = {name: encoder.encode(data.splits[name]) for name in names}
        self.has_valid = _VALID in self._encoded
        self._metrics = list(dict.fromkeys([experiment.task.metric, *data.metrics]))
        self.identity = {
            "fingerprint": fingerprint_of(self._encoded.values()),
            "corpus": data.name,
            "tokenizer": tokenizer.kind,
            "tokenizer_sha256": tokenizer.fingerprint,
            "vocabulary_size": num_ids,
        }
        self.plan = ExamplePlan(
            num_examples=len(data.splits[_TRAIN]),
            num_rows=experiment.training.global_batch_size,
            seed=experiment.training.seed,
            fingerprint=self._encoded[_TRAIN].fingerprint,
        )
        length = experiment.model.segment_length
        self.reader = ExampleReader(self._encoded[_TRAIN], self.plan, length)
        self.count_tokens = self.reader.count_tokens

    def describe_plan(self) -> tuple[str, str]:
        """Describes a step and the examples of the run in a few words each."""
        tokens = self._encoded[_TRAIN].num_tokens.sum(axis=1)
        rows, count = self.plan.num_rows, self.plan.num_examples
        longest = int(tokens.max())
        return (
            f"{rows:,} examples of {tokens.mean():,.0f} tokens, {longest:,} at most",
            f"passes over {count:,} examples",
        )

    def describe_loss(self, loss: float) -> str:
        """Returns nothing besides the loss itself."""
        return ""

    def describe_short(self, result: "TaskResult") -> str:
        """Formats the figure of the task's metric for the line of progress."""
        name, value = next(iter(result.figures.items()))
        return f"{name} {value:.4f}"

    def describe_result(self, result: "TaskResult", is_last: bool) -> str:
        return result.describe()

    def errors_explained(self) -> contextlib.nullcontext[None]:
        """Explains no error: the examples are in memory."""
        return contextlib.nullcontext()

    def evaluate(
        self,
        evaluator: "TaskEvaluator",
        step: int,
        track: Callable[..., Iterable],
        max_tokens: int | None = None,
    ) -> "TaskResult":
        """Evaluates the split `valid`; it is always read as a whole."""
        encoded = self._encoded[_VALID]
        return evaluator.evaluate(encoded, self._metrics, split=_VALID, step=step, track=track)
