"""Examples of a task that a model is fine-tuned for, whatever file they came from."""

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
        text: str. The words of the answer, as they stand in the passage.
        start: int. First character of it in the passage, counted from 0.
    """

    text: str
    start: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """Input of one prediction, with what is right where that is known.

    Args:
        name: str. The id in the file, or the number of the record as text.
        where: str. File and line or record, for messages, such as
            `"train.jsonl, line 12"`.
        texts: tuple of str. One text or several, such as a pair; the words of
            "tokens"; question and passage of "span". Of "choice" what is before
            the options; it may be empty.
        choices: tuple of str. Of "choice" the full texts of the options.
        label: The name of the class, a number, the index of the right choice, or
            the labels of all words. None where it is unknown, and for "span".
        answers: tuple of `Answer`. Of "span"; empty where there is no answer or
            it is unknown.
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
        """Whether it is known what is right: by a label, or of "span" by its answers."""
        return self.label is not None or bool(self.answers) or not self.is_answerable


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskData:
    """All examples of a task, by split.

    Args:
        name: str. Such as `"glue/sst2"`, `"race"`, `"squad"` or `"own"`.
        kind: str. One of "classification", "regression", "choice", "tokens" and
            "span".
        labels: tuple of str. Classes in a fixed order: as published, otherwise
            sorted. Empty for a task without classes.
        splits: dict of lists of `Example`. `"train"`, `"valid"` and others, such
            as `"valid_mismatched"` and `"test"`.
        metrics: tuple of str. Names for `compute_metrics`; the first one decides
            which weights are best.
    """

    name: str
    kind: TaskKind
    labels: tuple[str, ...]
    splits: dict[str, list[Example]]
    metrics: tuple[str, ...]
