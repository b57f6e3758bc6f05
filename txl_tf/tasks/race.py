"""RACE: exam questions with four options about a text (Lai et al. 2017).

The folder has `train`, `dev` and `test`, each with `middle` and `high`. These contain one `.txt`
file per article: a JSON object of `article`, `questions`, `options`, `answers` (letters) and `id`.

A choice is the question with one option. If the question has blanks, runs of `_`, the option fills
each of them; otherwise it follows the question after a space.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

from txl_tf.config.base import shown_value
from txl_tf.errors import InputMissingError, UsageError, did_you_mean
from txl_tf.storage.files import list_folder
from txl_tf.storage.untrusted_files import storage_errors
from txl_tf.tasks.example_files import check_names
from txl_tf.tasks.examples import Example, TaskData
from txl_tf.tasks.record_files import Record, read_json_document

LEVELS = ("middle", "high")
_SPLITS = {"train": "train", "dev": "valid", "test": "test"}
_LETTERS = "ABCD"
_BLANK = re.compile("_+")


def read_race(folder: str, levels: Sequence[str] = LEVELS) -> TaskData:
    """Reads the articles of all splits.

    Args:
        folder: str. The folder with `train`, `dev` and `test`; it may be remote.
        levels: sequence of str. Levels to read. Defaults to both.

    Returns:
        `TaskData` of kind "choice" with "train", "valid" and, if its folder exists, "test".
        Examples are named `level/file-question`, with questions counted from 0.

    Raises:
        UsageError: If there is no such level.
        InputMissingError: If there are no articles.
        DataDamagedError: If a file is damaged. The error names the file and the
            question, counted from 1.
        StorageError: If a file cannot be read.
    """
    for level in levels:
        if level not in LEVELS:
            what = f"RACE has no such level.{did_you_mean(level, LEVELS)}"
            raise UsageError(what, where=level, remedy=f"The levels are: {', '.join(LEVELS)}")
    splits = {}
    for part, split in _SPLITS.items():
        examples = [
            example
            for level in levels
            for path in _articles(os.path.join(folder, part, level), is_needed=split != "test")
            for example in _read_article(path, level)
        ]
        if examples:
            check_names(examples)
            splits[split] = examples
    return TaskData(
        name="race",
        kind="choice",
        labels=(),
        splits=splits,
        metrics=("accuracy", "accuracy_by_level"),
    )


def level_of(example: Example) -> str:
    """Returns the level of an example of `read_race`; empty for other examples."""
    level = example.name.partition("/")[0]
    return level if level in LEVELS else ""


def _articles(folder: str, is_needed: bool) -> list[str]:
    with storage_errors("The folder cannot be listed", folder):
        try:
            names = list_folder(folder)
        except NotADirectoryError:
            names = []
    found = [os.path.join(folder, name) for name in names if name.endswith(".txt")]
    if not found and is_needed:
        remedy = "Name the folder that has train, dev and test."
        raise InputMissingError("There are no articles here.", where=folder, remedy=remedy)
    return found


def _read_article(path: str, level: str) -> list[Example]:
    values = read_json_document(path)
    record = Record(path, 0, values)
    article = record.text("article")
    lists = [_list_of(record, key) for key in ("questions", "options", "answers")]
    if len({len(each) for each in lists}) != 1 or not lists[0]:
        counts = ", ".join(str(len(each)) for each in lists)
        raise record.damaged(
            "There must be as many questions as options and answers, and at least one. "
            f"Received: {counts}"
        )
    stem = os.path.basename(path).removesuffix(".txt")
    examples = []
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True)):
        place = Record(f"{path}, question {number + 1}", number, {"question": question})
        examples.append(
            Example(
                name=f"{level}/{stem}-{number}",
                where=place.where,
                texts=(article,),
                choices=_choices(place, options),
                label=_index_of(place, answer),
            )
        )
    return examples


def _list_of(record: Record, key: str) -> list[Any]:
    value = record.values.get(key)
    if not isinstance(value, list):
        raise record.damaged(f"The field {key!r} must be a list. Received: {shown_value(value)}")
    return value


def _choices(place: Record, options: Any) -> tuple[str, ...]:
    question = place.text("question")
    are_texts = isinstance(options, list) and all(isinstance(each, str) for each in options)
    if not are_texts or len(options) != len(_LETTERS):
        raise place.damaged(f"There must be four options. Received: {shown_value(options)}")
    return tuple(question_with_option(question, option) for option in options)


def question_with_option(question: str, option: str) -> str:
    """Puts an option into the blanks (`_`) of a question, or after a question without blanks."""
    if _BLANK.search(question):
        return _BLANK.sub(lambda match: option, question)
    return f"{question} {option}"


def _index_of(place: Record, answer: Any) -> int:
    if not isinstance(answer, str) or len(answer) != 1 or answer not in _LETTERS:
        raise place.damaged(f"The answer must be A, B, C or D. Received: {shown_value(answer)}")
    return _LETTERS.index(answer)
