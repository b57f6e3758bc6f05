"""Files of published tasks: GLUE, RACE and SQuAD.

GLUE (Wang et al. 2019): the folder of a task has `train.tsv`, `dev.tsv` and, optionally,
`test.tsv`, as its download script writes them. MNLI has `dev_matched.tsv`, `dev_mismatched.tsv` and
test files named the same way. Examples of the test files are named by the index that a submission
uses, all others by number from 0. Some records of QQP are broken at a line end: up to
`_MAX_BROKEN_LINES` lines with too few fields are skipped. One question of a pair of QQP may be
empty.

RACE (Lai et al. 2017): the folder has `train`, `dev` and `test`, each with `middle` and `high`.
These contain one `.txt` file per article: a JSON object of `article`, `questions`, `options`,
`answers` (letters) and `id`. A choice is the question with one option. If the question has blanks,
runs of `_`, the option fills each of them; otherwise it follows the question after a space.

SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): one JSON file per split.
"""

import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Any

from txl_tf.config.base import shown_value
from txl_tf.config.experiment import TaskKind
from txl_tf.errors import InputMissingError, UsageError, did_you_mean
from txl_tf.storage.files import list_folder, path_exists, read_file
from txl_tf.storage.untrusted_files import parse_json_object, storage_errors
from txl_tf.tasks.examples import (
    CORRECT,
    DEFAULT_METRICS,
    Columns,
    Example,
    Record,
    TaskData,
    checked_answers,
    read_split,
)

_MAX_BROKEN_LINES = 16
_MAX_JSON_BYTES = 1 << 28
_RACE_LEVELS = ("middle", "high")
_RACE_SPLITS = {"train": "train", "dev": "valid", "test": "test"}
_LETTERS = "ABCD"
_BLANK = re.compile("_+")
_BOTH = {"dev": "valid", "test": "test"}
_MATCHED = {
    "dev_matched": "valid",
    "dev_mismatched": "valid_mismatched",
    "test_matched": "test",
    "test_mismatched": "test_mismatched",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GlueTask:
    """Files of one task; `texts` and `label` are columns."""

    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = ("0", "1")
    """Classes in their order; empty for a score."""
    metrics: tuple[str, ...] = ("accuracy",)
    """The first one selects the best weights."""
    test_id: str = "index"
    """Column of the test files that names examples."""
    header: tuple[str, ...] | None = None
    """Columns of training and validation files without a header line."""
    has_broken_lines: bool = False
    """True if the published files have damaged records and empty questions."""
    splits: dict[str, str] = dataclasses.field(default_factory=lambda: _BOTH)
    """Names of the splits by file, beside "train"."""


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")

GLUE_TASKS = {
    "cola": _GlueTask(
        texts=("sentence",),
        metrics=("matthews",),
        header=("source", "label", "original_label", "sentence"),
    ),
    "sst2": _GlueTask(texts=("sentence",)),
    "mrpc": _GlueTask(
        texts=("#1 String", "#2 String"), label="Quality", metrics=("accuracy", "f1")
    ),
    "stsb": _GlueTask(texts=_PAIR, label="score", labels=(), metrics=("pearson", "spearman")),
    "qqp": _GlueTask(
        texts=("question1", "question2"),
        label="is_duplicate",
        metrics=("accuracy", "f1"),
        test_id="id",
        has_broken_lines=True,
    ),
    "mnli": _GlueTask(
        texts=_PAIR,
        label="gold_label",
        labels=("entailment", "neutral", "contradiction"),
        splits=_MATCHED,
    ),
    "qnli": _GlueTask(texts=("question", "sentence"), labels=_ENTAILMENT),
    "rte": _GlueTask(texts=_PAIR, labels=_ENTAILMENT),
    "wnli": _GlueTask(texts=_PAIR),
}
"""The tasks by the names that `read_glue` takes."""


def read_glue(folder: str, task: str) -> TaskData:
    """Reads the files of a task.

    Args:
        folder: str. The folder of the task's files.
        task: str. Name of the task, such as `"sst2"` or `"STS-B"`; see `GLUE_TASKS`.

    Returns:
        `TaskData` with "train", "valid" and, if its file exists, "test"; for MNLI also
        "valid_mismatched" and "test_mismatched".

    Raises:
        UsageError: If there is no such task.
        JobError: As `read_own_data`.
    """
    name = task.lower().replace("-", "")
    if name not in GLUE_TASKS:
        raise UsageError(
            f"GLUE has no such task.{did_you_mean(name, GLUE_TASKS)}",
            where=task,
            remedy=f"The tasks are: {', '.join(GLUE_TASKS)}",
        )
    chosen = GLUE_TASKS[name]
    kind: TaskKind = "classification" if chosen.labels else "regression"
    splits = {}
    for file, split in {"train": "train", **chosen.splits}.items():
        path, is_test = os.path.join(folder, f"{file}.tsv"), split.startswith("test")
        if is_test:
            with storage_errors("The file cannot be looked for", path):
                if not path_exists(path):
                    continue
        splits[split] = read_split(
            path,
            kind,
            Columns(
                text=chosen.texts,
                label=None if is_test else chosen.label,
                id=chosen.test_id if is_test else None,
            ),
            needs_label=not is_test,
            may_be_empty=chosen.has_broken_lines,
            header=None if is_test else chosen.header,
            max_broken_lines=_MAX_BROKEN_LINES if chosen.has_broken_lines and not is_test else 0,
        )
    return TaskData(
        name=f"glue/{name}",
        kind=kind,
        labels=chosen.labels,
        splits=splits,
        metrics=chosen.metrics,
    )


def read_race(folder: str) -> TaskData:
    """Reads the articles of all splits.

    Args:
        folder: str. The folder with `train`, `dev` and `test`; it may be remote.

    Returns:
        `TaskData` of kind "choice" with "train", "valid" and, if its folder exists, "test".
        Examples are named `level/file-question`, with questions counted from 0.

    Raises:
        InputMissingError: If there are no articles.
        JobError: As `read_own_data`; it names the file and the question, counted from 1.
    """
    splits = {
        split: [
            example
            for level in _RACE_LEVELS
            for path in _articles(os.path.join(folder, part, level), is_needed=split != "test")
            for example in _read_article(path, level)
        ]
        for part, split in _RACE_SPLITS.items()
    }
    return TaskData(
        name="race",
        kind="choice",
        labels=(),
        splits={split: examples for split, examples in splits.items() if examples},
        metrics=("accuracy", "accuracy_by_level"),
    )


def level_of(example: Example) -> str:
    """Returns the level of an example of RACE; empty for other examples."""
    level = example.name.partition("/")[0]
    return level if level in _RACE_LEVELS else ""


def _articles(folder: str, is_needed: bool) -> list[str]:
    with storage_errors("The folder cannot be listed", folder):
        names = list_folder(folder)
    found = [os.path.join(folder, name) for name in names if name.endswith(".txt")]
    if not found and is_needed:
        remedy = "Name the folder that has train, dev and test."
        raise InputMissingError("There are no articles (.txt).", where=folder, remedy=remedy)
    return found


def _read_article(path: str, level: str) -> list[Example]:
    record = _read_json_document(path)
    article = record.text("article")
    lists: list[Any] = [record.values.get(key) for key in ("questions", "options", "answers")]
    if not all(isinstance(each, list) and len(each) == len(lists[0]) > 0 for each in lists):
        raise record.damaged("Questions, options and answers must be lists of one length, not 0.")
    stem = os.path.basename(path).removesuffix(".txt")
    examples = []
    for number, (question, options, answer) in enumerate(zip(*lists, strict=True)):
        place = Record(f"{path}, question {number + 1}", number, {"question": question})
        are_texts = isinstance(options, list) and all(isinstance(each, str) for each in options)
        if not are_texts or len(options) != len(_LETTERS):
            raise place.damaged(f"Options must be four texts. Received: {shown_value(options)}")
        if not isinstance(answer, str) or len(answer) != 1 or answer not in _LETTERS:
            raise place.damaged(f"The answer must be A, B, C or D. Received: {shown_value(answer)}")
        question = place.text("question")
        examples.append(
            Example(
                name=f"{level}/{stem}-{number}",
                where=place.where,
                texts=(article,),
                choices=tuple(_with_option(question, option) for option in options),
                label=_LETTERS.index(answer),
            )
        )
    return examples


def _with_option(question: str, option: str) -> str:
    filled, num_blanks = _BLANK.subn(lambda match: option, question)
    return filled if num_blanks else f"{question} {option}"


def read_squad(paths_by_split: dict[str, str]) -> TaskData:
    """Reads files of either version.

    Args:
        paths_by_split: dict. JSON files by split: "train", "valid" and others. Splits
            whose names begin with `train` or `valid` need answers; others may lack them.

    Returns:
        `TaskData` of kind "span", called "squad".

    Raises:
        JobError: As `read_own_data`; it names the file and the question.
    """
    return TaskData(
        name="squad",
        kind="span",
        labels=(),
        splits={
            split: _read_squad_split(path, needs_answers=split.startswith(("train", "valid")))
            for split, path in paths_by_split.items()
        },
        metrics=DEFAULT_METRICS["span"],
    )


def _read_squad_split(path: str, needs_answers: bool) -> list[Example]:
    document = _read_json_document(path)
    examples = [
        _question(question, path, passage, needs_answers)
        for article in _objects(document, "data")
        for paragraph in _objects(article, "paragraphs")
        for passage in [paragraph.text("context")]
        for question in _objects(paragraph, "qas")
    ]
    if not examples:
        raise document.damaged("The file has no question.")
    return examples


def _objects(parent: Record, key: str) -> Iterator[Record]:
    """Yields the objects of a list as records with their place in the file."""
    values = parent.values.get(key)
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise parent.damaged(
            f"The field {key!r} must be a list of objects. Received: {shown_value(values)}"
        )
    for number, each in enumerate(values):
        separator = "." if parent.where.endswith("]") else ", "
        yield Record(f"{parent.where}{separator}{key}[{number}]", number, each)


def _question(record: Record, path: str, passage: str, needs_answers: bool) -> Example:
    name = record.text("id")
    shown = name if name.isprintable() and len(name) <= 100 else shown_value(name)
    question = Record(f"{path}, question {shown}", record.number, record.values)
    is_impossible = question.values.get("is_impossible", False)
    answers = question.values.get("answers", [])
    is_known = bool(answers) != is_impossible or not (needs_answers or answers)
    if not (isinstance(is_impossible, bool) and isinstance(answers, list) and is_known):
        raise question.damaged(
            "A question must have a list of `answers`, or `is_impossible` must be true. Received: "
            f"answers={shown_value(answers)}, is_impossible={shown_value(is_impossible)}"
        )
    return Example(
        name=name,
        where=question.where,
        texts=(question.text("question"), passage),
        answers=checked_answers(question, answers, passage),
        is_answerable=not is_impossible,
    )


def _read_json_document(path: str) -> Record:
    """Reads a file that is one JSON object as a record."""
    with storage_errors("The file cannot be read", path):
        try:
            content = read_file(path, max_bytes=_MAX_JSON_BYTES)
        except (FileNotFoundError, NotADirectoryError) as error:
            what = "There is no such file."
            raise InputMissingError(what, where=path, remedy="Name an existing file.") from error
    return Record(path, 0, parse_json_object(content, where=path, remedy=CORRECT))
