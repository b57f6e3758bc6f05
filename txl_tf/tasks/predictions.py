"""Files of predictions: JSON Lines, GLUE's submission and SQuAD's answers.

Files are written atomically, and existing files are never replaced.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from txl_tf.errors import NonFiniteError
from txl_tf.storage.files import write_file
from txl_tf.storage.staging import require_absent
from txl_tf.storage.untrusted_files import storage_errors
from txl_tf.tasks.examples import Example, TaskData


def write_predictions(
    path: str,
    data: TaskData,
    examples: Sequence[Example],
    predictions: Sequence[Any] | np.ndarray,
    scores: Sequence[Any] | np.ndarray | None = None,
) -> None:
    """Writes a line of JSON for each example: `name`, `prediction` and, if given, `scores`.

    The prediction is the name of a class, a number, the index of a choice, a list of labels or a
    text. Scores of classes are an object by class; other scores are written as given.

    Args:
        path: str. The file to write; it may be remote.
        data: `TaskData` of the task.
        examples: sequence of `Example`.
        predictions: sequence or array, as for `compute_metrics`.
        scores: optional sequence or array with the score of each example, or its probabilities of
            all classes or choices.

    Raises:
        OutputExistsError: If the file exists.
        NonFiniteError: If a number is not finite.
        StorageError: If the file cannot be written.
        ValueError: If the numbers of predictions or scores and examples differ.
    """
    _check_counts(examples, predictions, *([] if scores is None else [scores]))
    lines = []
    for number, example in enumerate(examples):
        values = {
            "name": example.name,
            "prediction": _shown_prediction(data, predictions[number]),
        }
        if scores is not None:
            values["scores"] = _shown_scores(data, scores[number])
        lines.append(_json(values, example))
    _write(path, "".join(f"{line}\n" for line in lines))


def write_glue_submission(
    path: str,
    data: TaskData,
    examples: Sequence[Example],
    predictions: Sequence[Any] | np.ndarray,
) -> None:
    """Writes a submission to GLUE's server: `index`, a tab, `prediction`.

    Args:
        path: str. The file to write; the server requires names such as `SST-2.tsv`.
        data: `TaskData` of a task of classes or numbers.
        examples: sequence of `Example`, named by their index.
        predictions: sequence or array of class indices or numbers. Scores of STS-B are clipped to 0
            to 5.

    Raises:
        OutputExistsError: If the file exists.
        NonFiniteError: If a number is not finite.
        StorageError: If the file cannot be written.
        ValueError: If the task is of another kind, a name is not an index, or the numbers of
            predictions and examples differ.
    """
    _check_counts(examples, predictions)
    if data.kind not in ("classification", "regression"):
        raise ValueError(
            f"A submission to GLUE must be of classes or numbers. Received: kind {data.kind!r}"
        )
    lines = ["index\tprediction\n"]
    for example, prediction in zip(examples, predictions, strict=True):
        if not (example.name.isascii() and example.name.isdigit()):
            raise ValueError(f"An index must be a number. Received: {example.name[:60]!r}")
        if data.kind == "classification":
            shown = data.labels[int(prediction)]
        else:
            _check_finite(float(prediction), example)
            shown = f"{min(max(float(prediction), 0.0), _HIGHEST_SCORE):.3f}"
        lines.append(f"{example.name}\t{shown}\n")
    _write(path, "".join(lines))


# Of STS-B, the only regression task of GLUE.
_HIGHEST_SCORE = 5.0


def write_squad_answers(path: str, examples: Sequence[Example], texts: Sequence[str]) -> None:
    """Writes a JSON object of answers by question id, for SQuAD's evaluation script.

    Args:
        path: str. The file to write.
        examples: sequence of `Example`.
        texts: sequence of str. The answers; empty for "no answer".

    Raises:
        OutputExistsError: If the file exists.
        StorageError: If the file cannot be written.
        ValueError: If the numbers of texts and examples differ.
    """
    _check_counts(examples, texts)
    answers = {example.name: str(text) for example, text in zip(examples, texts, strict=True)}
    _write(path, json.dumps(answers, ensure_ascii=False, indent=1) + "\n")


def _check_counts(examples: Sequence[Example], *parts: Any) -> None:
    for part in parts:
        if len(part) != len(examples):
            raise ValueError(
                "There must be a prediction for each example. "
                f"Received: {len(examples)} examples, {len(part)} predictions or scores"
            )


def _shown_prediction(data: TaskData, prediction: Any) -> Any:
    if data.kind == "classification":
        return data.labels[int(prediction)]
    return _plain(prediction)


def _shown_scores(data: TaskData, scores: Any) -> Any:
    plain = _plain(scores)
    if data.kind == "classification":
        return dict(zip(data.labels, plain, strict=True))
    return plain


def _plain(value: Any) -> Any:
    """Converts arrays and NumPy numbers to JSON types."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _json(values: dict[str, Any], example: Example) -> str:
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise _not_finite(example) from error


def _check_finite(value: float, example: Example) -> None:
    if not np.isfinite(value):
        raise _not_finite(example)


def _not_finite(example: Example) -> NonFiniteError:
    remedy = "Name another checkpoint, or lower the learning rate."
    return NonFiniteError("A prediction is not finite.", where=example.where, remedy=remedy)


def _write(path: str, text: str) -> None:
    remedy = "Check the folder, the disk and the permissions."
    with storage_errors("The predictions cannot be written", path, remedy):
        require_absent(path)
        write_file(path, text.encode())
