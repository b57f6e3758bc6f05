"""The data of a fine-tuning run: examples of a task, encoded, trained on and evaluated."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import MismatchError, UsageError
from txl_tf.evaluation.task_evaluator import TaskEvaluator, TaskResult
from txl_tf.tasks.encoding import ExampleEncoder, fingerprint_of
from txl_tf.tasks.examples import TaskData
from txl_tf.training.fine_tuning import ExamplePlan, ExampleReader, TaskObjective

_TRAIN, _VALID = "train", "valid"


class FineTuningData:
    """Examples of a task with a split `train`, as `TrainingRun` reads and evaluates them.

    Examples that cannot be encoded, or none to train on, are a DataDamagedError; another vocabulary
    or label is a MismatchError, a missing split a UsageError.
    """

    folder = None
    objective_class = TaskObjective

    def __init__(self, data: TaskData, tokenizer: Tokenizer, experiment: ExperimentConfig) -> None:
        assert experiment.task is not None
        if _TRAIN not in data.splits:
            raise UsageError("There are no examples to train on.", where="--train")
        size, num_ids = experiment.model.vocabulary_size, tokenizer.vocabulary_size
        if num_ids != size:
            raise MismatchError(
                f"The tokenizer has {num_ids} token ids, the model {size}.",
                where="--vocabulary",
                remedy=f"--set model.vocabulary_size={num_ids}",
            )
        self._data = data
        self._tokenizer = tokenizer
        self._task = experiment.task
        encoder = ExampleEncoder(experiment.task, tokenizer)
        names = [name for name in (_TRAIN, _VALID) if name in data.splits]
        self._encoded = {name: encoder.encode(data.splits[name]) for name in names}
        training = experiment.training
        self._fingerprint = fingerprint_of(self._encoded.values())
        self.plan = ExamplePlan(
            num_examples=len(data.splits[_TRAIN]),
            num_rows=training.global_batch_size,
            seed=training.seed,
            fingerprint=self._encoded[_TRAIN].fingerprint,
        )
        length = experiment.model.segment_length
        self.reader = ExampleReader(self._encoded[_TRAIN], self.plan, length)

    @property
    def identity(self) -> dict[str, Any]:
        """Values that decide the tokens and targets of the run, see `data_identity`."""
        return {
            "fingerprint": self._fingerprint,
            "corpus": self._data.name,
            "tokenizer": self._tokenizer.kind,
            "tokenizer_sha256": self._tokenizer.fingerprint,
            "vocabulary_size": self._tokenizer.vocabulary_size,
        }

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        return self._tokenizer.vocabulary_files

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def has_valid(self) -> bool:
        return _VALID in self._encoded

    @property
    def language_text(self) -> None:
        """`None`: a task has no text that a language model could continue."""

    @property
    def bytes_per_token(self) -> None:
        """`None`: the loss of a task is not a loss per token."""

    def count_tokens(self, first_step: int, last_step: int) -> int:
        return self.reader.count_tokens(first_step, last_step)

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

    def describe_short(self, result: TaskResult) -> str:
        """Formats the figure of the task's metric for the line of progress."""
        name, value = next(iter(result.figures.items()))
        return f"{name} {value:.4f}"

    def describe_result(self, result: TaskResult, is_last: bool) -> str:
        return result.describe()

    def create_evaluator(
        self,
        experiment: ExperimentConfig,
        strategy: tf.distribute.Strategy | None = None,
        variables: Mapping[str, keras.Variable] | None = None,
    ) -> TaskEvaluator:
        return TaskEvaluator(experiment, strategy, variables)

    def evaluate(
        self,
        evaluator: TaskEvaluator,
        step: int,
        track: Callable[..., Iterable],
        max_tokens: int | None = None,
    ) -> TaskResult:
        """Evaluates the split `valid`; it is always read as a whole."""
        encoded = self._encoded[_VALID]
        names = [self._task.metric]
        names += [name for name in self._data.metrics if name != self._task.metric]
        return evaluator.evaluate(encoded, names, split=_VALID, step=step, track=track)

    @contextlib.contextmanager
    def errors_explained(self) -> Iterator[None]:
        """Does nothing: the examples are in memory."""
        yield
