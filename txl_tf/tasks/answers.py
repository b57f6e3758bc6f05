"""Answers of a task from the outputs of its model, and their file.

Shape letters used in this module: E examples, C outputs.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.config.task import TaskConfig
from txl_tf.errors import UsageError, storage_errors
from txl_tf.storage.files import write_file
from txl_tf.storage.staging import require_absent
from txl_tf.tasks.examples import Example, TaskData


def answers_of(task: TaskConfig, outputs: np.ndarray) -> tuple[list[Any], list[Any]]:
    """Converts outputs `(E, C)` of the model to predictions for `compute_metrics`, and to scores.

    In a classification, the scores of an example are the probabilities `(C,)` of the classes. In a
    regression, the prediction is also the score.
    """
    if task.kind == "regression":
        numbers = outputs[:, 0].tolist()
        return numbers, numbers
    powers = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    return probabilities.argmax(axis=1).tolist(), probabilities.tolist()


def check_predictions_file(path: str) -> None:
    """Raises UsageError unless a path ends in `.jsonl`, and OutputExistsError if it exists."""
    if not path.endswith(".jsonl"):
        raise UsageError(
            "Predictions are written as JSON Lines.", where=path, remedy="Name a .jsonl file."
        )
    require_absent(path)


def write_predictions(
    path: str,
    data: TaskData,
    examples: Sequence[Example],
    predictions: Sequence[Any] | np.ndarray,
    scores: Sequence[Any] | np.ndarray | None = None,
) -> None:
    """Writes a line of JSON for each example: `name`, `prediction` and the optional `scores`.

    A prediction is the name of a class or a number. Scores of classes are an object with the
    probability of each class by its name.

    Args:
        path: str. The `.jsonl` file to write, local or remote. It is written whole or not at all.
        data: `TaskData` of the task.
        examples: sequence of `Example`.
        predictions: sequence or array, as for `compute_metrics`.
        scores: optional sequence or array with the score of each example, or its probabilities.

    Raises:
        OutputExistsError: If the file exists.
        StorageError: If the file cannot be written.
        UsageError: If the path does not end in `.jsonl`.
        ValueError: If there are not as many predictions and scores as examples, or a number is not
            finite.
    """
    check_predictions_file(path)
    has_classes = data.kind == "classification"
    all_scores = [None] * len(examples) if scores is None else np.asarray(scores).tolist()
    lines = []
    together = zip(examples, np.asarray(predictions).tolist(), all_scores, strict=True)
    for example, prediction, score in together:
        if has_classes:
            prediction = data.labels[int(prediction)]
        values = {"name": example.name, "prediction": prediction}
        if score is not None:
            values["scores"] = dict(zip(data.labels, score, strict=True)) if has_classes else score
        lines.append(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
    with storage_errors(
        "The predictions cannot be written", path, "Check the folder, the disk and the permissions."
    ):
        write_file(path, "".join(lines).encode())
