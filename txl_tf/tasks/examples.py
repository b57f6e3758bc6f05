"""Examples of a fine-tuning task, by split."""

import dataclasses
from typing import get_args

from txl_tf.config.base import shown_value
from txl_tf.config.task import TaskKind
from txl_tf.errors import DataDamagedError

TASK_KINDS: tuple[TaskKind, ...] = get_args(TaskKind)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """Texts for one prediction, and the label if it is known.

    Args:
        name: str. The id in the file, or the number of the record as text.
        where: str. Place of the example for messages, such as `"train.jsonl, line 12"`.
        texts: tuple of str. One or more texts, such as a question and an answer.
        label: str or float. The name of the class, or a number. Defaults to `None`: unknown.
    """

    name: str
    where: str
    texts: tuple[str, ...]
    label: str | float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskData:
    """All examples of a task, by split.

    Args:
        kind: str. One of `TASK_KINDS`.
        labels: tuple of str. Classes in their order; empty for a regression.
        splits: dict of lists of `Example`, by the name of a split: `"train"`, `"valid"` and others,
            such as `"test"`.
        metrics: tuple of str. Names for `compute_metrics`; the first one selects the best weights.

    Raises:
        DataDamagedError: If two examples of a split have the same name.
    """

    kind: TaskKind
    labels: tuple[str, ...]
    splits: dict[str, list[Example]]
    metrics: tuple[str, ...]

    def __post_init__(self) -> None:
        for examples in self.splits.values():
            places: dict[str, str] = {}
            for example in examples:
                if (first := places.get(example.name)) is not None:
                    raise DataDamagedError(
                        f"The id {shown_value(example.name)} is used twice; first in {first}.",
                        where=example.where,
                        remedy="Correct the file, or take the record out.",
                    )
                places[example.name] = example.where
