"""Interface of the data that a training run reads."""

import abc
import contextlib
from collections.abc import Callable
from typing import Any

from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.tokenizer import Tokenizer


class RunData(abc.ABC):
    """Data of a training run: the batches of its steps, and the split that it evaluates.

    `TrainingData` has tokens of a text, `FineTuningData` examples of a task. A result is what
    `evaluate` returns: its attribute `criterion` is lower for better weights.
    """

    identity: dict[str, Any]
    """Fingerprint and vocabulary, written to `run.json`; a resumed run must have the same."""
    folder: str | None
    """Folder of the data set, from which the run resumes without `--data`; `None` if there is
    none."""
    tokenizer: Tokenizer
    """Tokenizer whose vocabulary the run keeps."""
    reader: Any
    """Source of batches: `dataset_fn` for `Trainer`, and `describe_row(step, row)` for errors."""
    plan: Any
    """Order of the rows, with `steps_per_epoch`."""
    objective_class: type[Any]
    """Class of what a step computes, such as `TextObjective`."""
    create_evaluator: Callable[..., Any]
    """Creates the evaluator of an experiment, under a strategy, with variables of a model."""
    count_tokens: Callable[[int, int], int] | None
    """Counts the tokens of steps from one to another; `None` if all rows are whole segments."""
    has_valid: bool
    """Whether there is a split `valid` to evaluate."""
    bytes_per_token: float | None
    """Mean number of bytes per token; `None` if the loss is not a loss per token."""
    language_text: PreparedDataset | None
    """Data set whose split `valid` the model reads and continues for the curves, if there is
    one."""

    @abc.abstractmethod
    def describe_plan(self) -> tuple[str, str]:
        """Describes a step, and what the run passes over, in a few words each."""

    @abc.abstractmethod
    def describe_loss(self, loss: float) -> str:
        """Formats a training loss, in nats per token or in the unit of the task."""

    @abc.abstractmethod
    def describe_short(self, result: Any) -> str:
        """Formats the figure of a result for the line of progress."""

    @abc.abstractmethod
    def describe_result(self, result: Any, is_last: bool) -> str:
        """Formats a result, in a line unless it is the last."""

    @abc.abstractmethod
    def evaluate(
        self, evaluator: Any, step: int, track: Callable[..., Any], max_tokens: int | None = None
    ) -> Any:
        """Evaluates the split `valid`, or `max_tokens` tokens of it, after `step` steps."""

    def errors_explained(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that turns reading errors into errors that name the file."""
        return contextlib.nullcontext()
