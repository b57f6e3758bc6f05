"""Settings and data of runs that train on a task."""

import argparse
import contextlib
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from txl_tf.config.experiment import ExperimentConfig, TaskConfig
from txl_tf.errors import MismatchError, UsageError
from txl_tf.model_folder import open_model

from .arguments import overridden_settings, override, overrides_of
from .configs import load_experiment
from .initial_weights import DEFAULT_EPOCHS, default_settings, of_length

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.tokenizer import Tokenizer
    from txl_tf.evaluation.result import TaskResult
    from txl_tf.evaluation.task_evaluator import TaskEvaluator
    from txl_tf.tasks.examples import TaskData

MAX_EPOCHS = 100_000
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
    if arguments.init_from is not None and arguments.config is not None:
        raise UsageError("--config and --init-from exclude each other.", where="--config")
    if arguments.init_from is not None:
        model = open_model(arguments.init_from, arguments.init_step).description.model
    elif arguments.config is not None:
        model = load_experiment(arguments.config, []).model
    else:
        remedy = "Name the folder of a trained model, or with --config that of a new one."
        raise UsageError("A new run needs a model.", where="--init-from", remedy=remedy)
    values = default_settings(model) | {"task": _task(data).to_dict()}
    begin = override(ExperimentConfig.from_dict(values), overrides)
    num_steps = _steps_of(arguments.epochs or DEFAULT_EPOCHS, data, begin)
    if "training.num_steps" in overridden_settings(overrides):
        num_steps = begin.training.num_steps
    each_epoch = min(_steps_of(1, data, begin), num_steps)
    followed = {
        "training.evaluate_every_steps": each_epoch,
        "training.checkpoint_every_steps": each_epoch,
        "training.steps_per_loop": min(100, each_epoch),
    }
    return of_length(begin, num_steps, overrides, followed)


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
    errors_explained = contextlib.nullcontext  # the examples are in memory

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
