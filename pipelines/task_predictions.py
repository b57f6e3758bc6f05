"""Predictions of a fine-tuned model for the examples of a file: `--predict` and `--out`."""

import argparse
import os
from typing import Any

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.storage.staging import require_absent
from txl_tf.tasks.answers import write_glue_submission, write_predictions, write_squad_answers
from txl_tf.tasks.examples import Example, TaskData
from txl_tf.tasks.metrics import compute_metrics

from .task_arguments import read_task_data
from .workdir import Workdir

_ENDINGS = (".jsonl", ".tsv", ".json")


def add_prediction_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds `--predict` and `--out`."""
    group = parser.add_argument_group("predictions")
    group.add_argument(
        "--predict", metavar="FILE|SPLIT", help="examples to answer; of GLUE and RACE a split"
    )
    group.add_argument("--out", metavar="FILE", help="answers to write: .jsonl, .tsv, .json")


def check_prediction_arguments(
    arguments: argparse.Namespace, begun: ExperimentConfig | None
) -> None:
    """Checks the arguments before training; `begun` is the experiment of the run in the folder."""
    if arguments.predict is None:
        if arguments.out is not None:
            raise UsageError("This goes with --predict.", where="--out")
        return
    if arguments.out is not None:
        if not arguments.out.endswith(_ENDINGS):
            what = "The ending says the format: .jsonl, .tsv or .json."
            raise UsageError(what, where=f"--out {arguments.out}", remedy="Name such a file.")
        require_absent(arguments.out)
    names_file = arguments.format in ("own", "squad")
    if names_file and not os.path.isfile(arguments.predict):
        raise InputMissingError(
            "There is no such file.", where=f"--predict {arguments.predict}", remedy="Name one."
        )
    if begun is None and arguments.train is None and arguments.data is None:
        raise InputMissingError(
            "There is no run in this folder.",
            where=arguments.workdir,
            remedy="Name examples to train on, or the folder of a run.",
        )


def predict(arguments: argparse.Namespace) -> None:
    """Predicts the examples, prints figures if they have labels, and writes the answers."""
    from txl_tf.causal_lm.text_task import load_task

    workdir = Workdir(arguments.workdir)
    task = load_task(workdir.folder)
    data, examples = _examples(arguments, task.task.kind, task.task.labels)
    predictions, scores = task.answer(examples)
    if all(each.is_labelled for each in examples):
        own = data.metrics, data.kind, data.labels, examples, predictions
        figures = compute_metrics(*own)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        print(f"{arguments.predict}: {shown} ({len(examples):,} examples)")
    if arguments.out is None:
        return
    if arguments.out.endswith(".tsv"):
        _write_submission(arguments.out, data, examples, predictions)
    elif arguments.out.endswith(".json"):
        _require_kind(data, "span", arguments.out)
        write_squad_answers(arguments.out, examples, predictions)
    else:
        write_predictions(arguments.out, data, examples, predictions, scores)
    print(f"{len(examples):,} answers: {arguments.out}")


def _examples(
    arguments: argparse.Namespace, kind: Any, labels: tuple[str, ...] | None
) -> tuple[TaskData, list[Example]]:
    """Reads the examples that `--predict` names."""
    if arguments.format in ("own", "squad"):
        named = {"train": None, "valid": None, "test": arguments.predict, "task": kind}
        if arguments.format != "own":
            del named["task"]
        data = read_task_data(argparse.Namespace(**{**vars(arguments), **named}), labels)
        return data, data.splits["test"]
    # These formats read all splits before training.
    data = arguments.task_data
    if arguments.predict not in data.splits:
        raise UsageError(
            f"There is no split {arguments.predict} in these files.",
            where=f"--predict {arguments.predict}",
            remedy=f"There are: {', '.join(data.splits)}.",
        )
    return data, data.splits[arguments.predict]


def _write_submission(path: str, data: TaskData, examples: list[Example], predictions: Any) -> None:
    try:
        write_glue_submission(path, data, examples, predictions)
    except ValueError as error:
        raise UsageError(f"{error}", where=f"--out {path}", remedy="Name a .jsonl file.") from error


def _require_kind(data: TaskData, kind: str, path: str) -> None:
    if data.kind != kind:
        raise UsageError(
            f"Answers of kind {data.kind} are not of this form.",
            where=f"--out {path}",
            remedy="Name a .jsonl file.",
        )
