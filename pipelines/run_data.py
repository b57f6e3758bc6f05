"""Interface of the data that a training run reads and evaluates."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from txl_tf.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from txl_tf.config.experiment import ExperimentConfig
    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.data.tokenizers.tokenizer import Tokenizer


Track = Callable[[Iterable, int], Iterable]
"""Function of batches and their number that passes the batches on, such as a progress bar."""


class Plan(Protocol):
    """Arithmetic of what each row reads at each step: `SegmentPlan` or `ExamplePlan`."""

    @property
    def steps_per_epoch(self) -> float:
        """Steps in which everything is read once."""

    def positions(self, step: int) -> "np.ndarray":
        """Returns what each row reads at a step, int64 `[B]`."""


class Reader(Protocol):
    """Batches of a plan: `SegmentReader` or `ExampleReader`."""

    @property
    def dataset_fn(self) -> Callable[..., "tf.data.Dataset"]:
        """Function that makes the data set of a host."""

    def describe_row(self, step: int, row: int) -> str:
        """Describes the origin of a row of a step, both counted from 0."""


class RunData(Protocol):
    """Data of a run: `TrainingData` of a language model, `FineTuningData` of a task.

    Evaluators and results belong to the same class of data.
    """

    @property
    def folder(self) -> str | None:
        """Folder of the data set, for the next start; `None` of a task."""

    @property
    def objective_class(self) -> type:
        """Class of the loss, see `Trainer`."""

    @property
    def plan(self) -> Plan:
        """Plan of the run."""

    @property
    def reader(self) -> Reader:
        """Reader of the plan."""

    @property
    def identity(self) -> dict[str, Any]:
        """Values that decide the tokens of the run, see `RunDescription.data`."""

    @property
    def tokenizer(self) -> "Tokenizer":
        """Tokenizer of the data."""

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files that define the tokenizer."""

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes of text per token of the split `train`; `None` of a task."""

    @property
    def has_valid(self) -> bool:
        """True if there is a split to evaluate during training."""

    @property
    def language_text(self) -> "PreparedDataset | None":
        """Data set whose split `valid` a language model reads for the curves."""

    def count_tokens(self, first_step: int, last_step: int) -> int:
        """Counts the tokens that all rows read in some steps."""

    def describe_plan(self) -> tuple[str, str]:
        """Describes a step and a pass in a few words each."""

    def describe_loss(self, loss: float) -> str:
        """Returns a figure of a mean loss, such as bits per byte, or ""."""

    def describe_short(self, result: Any) -> str:
        """Returns the figure of an evaluation for the line of progress."""

    def describe_result(self, result: Any, is_last: bool) -> str:
        """Returns the figures of an evaluation."""

    def create_evaluator(
        self,
        experiment: "ExperimentConfig",
        strategy: "tf.distribute.Strategy | None" = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Any:
        """Builds the evaluator of the run, without weights or with a trainer's variables."""

    def evaluate(
        self,
        evaluator: Any,
        step: int,
        track: Track,
        max_tokens: int | None = None,
    ) -> Any:
        """Evaluates the split `valid` with an evaluator that has the weights of a step."""

    def errors_explained(self) -> AbstractContextManager[None]:
        """Returns a context that turns reading errors into errors that name the file."""


def require_split_of_rate(experiment: "ExperimentConfig", data: RunData) -> None:
    """Raises UsageError if the learning rate follows evaluations but there is no split `valid`."""
    if experiment.optimizer.schedule == "plateau" and not data.has_valid:
        raise UsageError(
            "The learning rate follows evaluations, but the data has no split `valid`.",
            where="optimizer.schedule=plateau",
            remedy="Choose another schedule, or prepare data with a split `valid`.",
        )
