"""Examples of a fine-tuning task, from any file format."""

import dataclasses

from txl_tf.config.task import TaskKind

TASK_KINDS: tuple[TaskKind, ...] = ("classification", "regression", "choice", "tokens", "span")

DEFAULT_METRICS: dict[TaskKind, tuple[str, ...]] = {
    "classification": ("accuracy", "f1_macro"),
    "regression": ("pearson", "spearman", "mean_squared_error"),
    "choice": ("accuracy",),
    "tokens": ("token_f1", "token_accuracy"),
    "span": ("span_f1", "exact_match"),
}
"""Metrics of own data, by kind; the first one decides which weights are best."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Accepted answer of a question about a passage.

    Args:
        text: str. The words of the answer, as in the passage.
        start: int. Its first character in the passage, counted from 0.
    """

    text: str
    start: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """Input of one prediction, with its label if known.

    Args:
        name: str. The id in the file, or the number of the record as text.
        where: str. File and line or record, for messages, such as
            `"train.jsonl, line 12"`.
        texts: tuple of str. One text or several, such as a pair; the words of "tokens"; question
            and passage of "span"; the texts before the options of "choice", or none.
        choices: tuple of str. The full texts of the options of "choice".
        label: The name of the class, a number, the index of the right choice, or the labels of all
            words. None if unknown, and for "span".
        answers: tuple of `Answer`. Answers of "span"; empty if there is no answer or it is unknown.
        is_answerable: bool. False for a question that the passage cannot answer.
    """

    name: str
    where: str
    texts: tuple[str, ...]
    choices: tuple[str, ...] = ()
    label: str | float | int | tuple[str, ...] | None = None
    answers: tuple[Answer, ...] = ()
    is_answerable: bool = True

    @property
    def is_labelled(self) -> bool:
        """True if the label is known, or for "span" the answers."""
        return self.label is not None or bool(self.answers) or not self.is_answerable


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskData:
    """All examples of a task, by split.

    Args:
        name: str. Such as `"glue/sst2"`, `"race"`, `"squad"` or `"own"`.
        kind: str. One of "classification", "regression", "choice", "tokens" and
            "span".
        labels: tuple of str. Classes in the published order, otherwise sorted. Empty for a task
            without classes.
        splits: dict of lists of `Example`. `"train"`, `"valid"` and others, such
            as `"valid_mismatched"` and `"test"`.
        metrics: tuple of str. Names for `compute_metrics`; the first one selects the best weights.
    """

    name: str
    kind: TaskKind
    labels: tuple[str, ...]
    splits: dict[str, list[Example]]
    metrics: tuple[str, ...]
