"""GLUE: nine tasks in the files of its download script, with their metrics (Wang et al. 2019).

The folder of a task has `train.tsv`, `dev.tsv` and, optionally, `test.tsv`. MNLI has
`dev_matched.tsv` and `dev_mismatched.tsv`, and test files named the same way. Fields are not
quoted. Examples of the test files are named by the index that a submission uses, all others by
number from 0.

Some records of the published training file of QQP are broken at a line end: up to
`_MAX_BROKEN_LINES` lines with too few fields are skipped. One question of a pair of QQP may be
empty.
"""

import dataclasses
import os

from txl_tf.errors import UsageError, did_you_mean
from txl_tf.storage.files import path_exists
from txl_tf.storage.untrusted_files import storage_errors
from txl_tf.tasks.example_files import check_labels, check_names
from txl_tf.tasks.examples import Example, TaskData
from txl_tf.tasks.record_files import Record, number_of, read_records

_MAX_BROKEN_LINES = 16
_BOTH = {"dev": "valid", "test": "test"}
_MATCHED = {
    "dev_matched": "valid",
    "dev_mismatched": "valid_mismatched",
    "test_matched": "test",
    "test_mismatched": "test_mismatched",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlueTask:
    """Files and metrics of one task.

    Args:
        folder: str. Folder name that the download script uses.
        texts: tuple of str. Columns of the texts.
        label: str. Column of the label.
        labels: tuple of str. Classes in their order; empty for a score.
        metrics: tuple of str. The first one selects the best weights.
        test_id: str. Column of the test files that names examples.
        header: tuple of str. Columns of training and validation files without a header line.
        has_broken_lines: bool. True if the published files have damaged records and empty
            questions.
        splits: dict. Names of the splits by file, beside "train".
    """

    folder: str
    texts: tuple[str, ...]
    label: str = "label"
    labels: tuple[str, ...] = ("0", "1")
    metrics: tuple[str, ...] = ("accuracy",)
    test_id: str = "index"
    header: tuple[str, ...] = ()
    has_broken_lines: bool = False
    splits: dict[str, str] = dataclasses.field(default_factory=lambda: _BOTH)


_ENTAILMENT = ("entailment", "not_entailment")

GLUE_TASKS = {
    "cola": GlueTask(
        folder="CoLA",
        texts=("sentence",),
        metrics=("matthews",),
        header=("source", "label", "original_label", "sentence"),
    ),
    "sst2": GlueTask(folder="SST-2", texts=("sentence",)),
    "mrpc": GlueTask(
        folder="MRPC",
        texts=("#1 String", "#2 String"),
        label="Quality",
        metrics=("accuracy", "f1"),
    ),
    "stsb": GlueTask(
        folder="STS-B",
        texts=("sentence1", "sentence2"),
        label="score",
        labels=(),
        metrics=("pearson", "spearman"),
    ),
    "qqp": GlueTask(
        folder="QQP",
        texts=("question1", "question2"),
        label="is_duplicate",
        metrics=("accuracy", "f1"),
        test_id="id",
        has_broken_lines=True,
    ),
    "mnli": GlueTask(
        folder="MNLI",
        texts=("sentence1", "sentence2"),
        label="gold_label",
        labels=("entailment", "neutral", "contradiction"),
        splits=_MATCHED,
    ),
    "qnli": GlueTask(folder="QNLI", texts=("question", "sentence"), labels=_ENTAILMENT),
    "rte": GlueTask(folder="RTE", texts=("sentence1", "sentence2"), labels=_ENTAILMENT),
    "wnli": GlueTask(folder="WNLI", texts=("sentence1", "sentence2")),
}
"""The tasks by the names that `read_glue` takes."""


def glue_task(name: str) -> GlueTask:
    """Returns the task of a name, such as `"sst2"`, `"SST-2"` or `"STS-B"`.

    Raises UsageError if there is no such task.
    """
    known = name.lower().replace("-", "")
    if known not in GLUE_TASKS:
        raise UsageError(
            f"GLUE has no such task.{did_you_mean(known, GLUE_TASKS)}",
            where=name,
            remedy=f"The tasks are: {', '.join(GLUE_TASKS)}",
        )
    return GLUE_TASKS[known]


def read_glue(folder: str, task: str) -> TaskData:
    """Reads the files of a task.

    Args:
        folder: str. The folder of the task's files.
        task: str. Name of the task; see `GLUE_TASKS`.

    Returns:
        `TaskData` with "train", "valid" and, if its file exists, "test"; for MNLI also
        "valid_mismatched" and "test_mismatched".

    Raises:
        UsageError: If there is no such task.
        InputMissingError: If a file other than a test file is missing.
        MismatchError: If a file has other columns or classes.
        DataDamagedError: If a file or a record is damaged.
        StorageError: If a file cannot be read.
    """
    chosen = glue_task(task)
    files = {"train": "train"} | chosen.splits
    splits = {}
    for file, split in files.items():
        path = os.path.join(folder, f"{file}.tsv")
        if split.startswith("test"):
            with storage_errors("The file cannot be looked for", path):
                if not path_exists(path):
                    continue
        splits[split] = _read_split(path, chosen, is_test=split.startswith("test"))
    name = next(key for key, each in GLUE_TASKS.items() if each is chosen)
    return TaskData(
        name=f"glue/{name}",
        kind="classification" if chosen.labels else "regression",
        labels=chosen.labels,
        splits=splits,
        metrics=chosen.metrics,
    )


def _read_split(path: str, task: GlueTask, is_test: bool) -> list[Example]:
    columns = (*task.texts, task.test_id if is_test else task.label)
    records = read_records(
        path,
        columns,
        header=None if is_test else task.header or None,
        max_broken_lines=_MAX_BROKEN_LINES if task.has_broken_lines and not is_test else 0,
    )
    examples = [_example(record, task, is_test) for record in records]
    check_names(examples)
    if task.labels:
        check_labels(examples, task.labels)
    return examples


def _example(record: Record, task: GlueTask, is_test: bool) -> Example:
    label: str | float | None = None
    if not is_test:
        label = record.text(task.label) if task.labels else number_of(record, task.label)
    return Example(
        name=record.text(task.test_id) if is_test else str(record.number),
        where=record.where,
        texts=_texts(record, task),
        label=label,
    )


def _texts(record: Record, task: GlueTask) -> tuple[str, ...]:
    texts = tuple(record.text(name, may_be_empty=task.has_broken_lines) for name in task.texts)
    if not any(text.strip() for text in texts):
        raise record.damaged("All texts of the record are empty.")
    return texts
