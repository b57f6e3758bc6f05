"""Recall of a key by distance, and loss by position: `txl analyze recall`.

    txl analyze recall --workdir DIR --memory 0,640 --out DIR
    txl analyze recall --write-text FILE --documents 20000

A key is told in a text, and asked for 0 to 20 segments of filler later. "exact"
is how often greedy generation writes the key, "choice" how often the key has
the fewest nats among --choices keys. With --data it also measures the loss by
position in the documents of a split. A run has the tokenizer; nothing is
trained. --write-text writes such documents to train on, a line each.
"""

import argparse
import functools
import json
import os
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from txl_tf.causal_lm.model_source import ModelSource
from txl_tf.config.base import MAX_ROWS, MAX_TOKENS
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.model import ModelConfig
from txl_tf.data.manifest import Manifest
from txl_tf.errors import InputMissingError, MismatchError, UsageError
from txl_tf.evaluation.passkeys import KEY, KeyPattern, PasskeySentences
from txl_tf.imports import require_extra
from txl_tf.storage.staging import require_absent

from ..arguments import (
    MAX_COUNT,
    MAX_STEP,
    add_json_argument,
    add_number,
    add_numbers,
    add_step_argument,
)
from ..memory_needs import reading_needs, require_memory_of
from ..trained_model import open_source
from ..workdir import check_split
from .figures import draw_recall, memory_label
from .report_folder import write_report

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.tokenizer import Tokenizer

REPORT_FILE = "recall.json"

_MAX_DISTANCE_SEGMENTS = 10_000
_MAX_DOCUMENTS = 1_000_000

_STATEMENT = f"The key is {KEY}."
_QUESTION = f"Again, the key is {KEY}."
_PATTERN = "A0"
_DEFAULTS = {
    "documents": 50,
    "seed": 0,
    "distances": list(range(21)),
    "choices": 10,
    "batch_size": 8,
    "split": "valid",
    "segment_length": 32,
}
# What only one of the two uses of the job reads.
_OF_MODEL = (
    *("out", "step", "memory", "choices", "data", "split", "positions", "filler_split"),
    *("batch_size", "json"),
)
_OF_TEXT = ("segment_length",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the analysis."""
    use = parser.add_mutually_exclusive_group(required=True)
    use.add_argument("--workdir", metavar="DIR", help="run, checkpoint, converted model or export")
    use.add_argument("--write-text", metavar="FILE", help="write text to train on instead")
    parser.add_argument("--out", metavar="DIR", help="folder to make")
    add_step_argument(parser)
    lists = {
        "--memory": ("TOKENS", 0, MAX_TOKENS, "memory lengths (default: 0 and the run's)"),
        "--distances": ("SEGMENTS", 0, _MAX_DISTANCE_SEGMENTS, "of filler (default: 0 to 20)"),
        "--positions": ("TOKENS", 0, MAX_COUNT, "first of each range (default: 0,1,2,4,8...)"),
    }
    for option, (unit, least, most, meaning) in lists.items():
        add_numbers(parser, option, least, most, meaning, unit=unit)
    numbers = {
        "--documents": (1, _MAX_DOCUMENTS, "of each distance, or to write"),
        "--choices": (2, MAX_ROWS, "keys to choose from"),
        "--batch-size": (1, MAX_ROWS, "documents read side by side"),
        "--segment-length": (1, MAX_TOKENS, "characters of a segment of --write-text"),
        "--seed": (0, MAX_STEP, "decides keys and filler"),
    }
    for option, (least, most, meaning) in numbers.items():
        default = _DEFAULTS[option[2:].replace("-", "_")]
        add_number(parser, option, least, most, f"{meaning} (default: {default})")
    parser.add_argument("--statement", default=_STATEMENT, help=f'default: "{_STATEMENT}"')
    parser.add_argument("--question", default=_QUESTION, help=f'default: "{_QUESTION}"')
    keys = parser.add_mutually_exclusive_group()
    meaning = "A, a, 0: any capital, small letter, digit (default: A0)"
    keys.add_argument("--key-pattern", metavar="PATTERN", default=_PATTERN, help=meaning)
    keys.add_argument("--keys", metavar="WORD,...", help="keys to draw from instead")
    filler = parser.add_mutually_exclusive_group()
    filler.add_argument("--filler", metavar="FILE", help="text between (default: a sentence)")
    filler.add_argument("--filler-split", metavar="NAME", help="split of --data to take it from")
    parser.add_argument("--data", metavar="DIR", help="data set, for the loss by position")
    parser.add_argument("--split", metavar="NAME", help="its split (default: valid)")
    add_json_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    _check_fitting(arguments)
    for name, value in _DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    for option in ("distances", "memory", "positions"):
        _check_ascending(getattr(arguments, option) or [], f"--{option}")
    if arguments.positions and arguments.positions[0] != 0:
        raise UsageError("The first position is 0.", where=f"--positions {arguments.positions[0]}")
    try:
        arguments.sentences = PasskeySentences.parse(arguments.statement, arguments.question)
    except ValueError as error:
        raise UsageError(f"{error}", where="--statement, --question") from error
    _check_keys(arguments)
    if arguments.filler is not None and not os.path.isfile(arguments.filler):
        remedy = "Name an existing text file."
        raise InputMissingError("There is no such file.", where=arguments.filler, remedy=remedy)
    if arguments.write_text is not None:
        require_absent(arguments.write_text)
        return
    require_extra("plots", "matplotlib", purpose="Drawing the figures")
    source = open_source(arguments)
    if source.data is None:
        # That of a run was checked when it began, and may need TensorFlow.
        require_tokenizer(source)
    arguments.memory_lengths = _memory_lengths(arguments)
    _require_memory(arguments)
    if arguments.data is not None:
        _check_documents(arguments)
    require_absent(arguments.out)


def require_tokenizer(source: ModelSource) -> "Tokenizer":
    """Reads the tokenizer of a model; raises MismatchError where it has none."""
    tokenizer = source.tokenizer()
    if tokenizer is None:
        raise MismatchError(
            "The model has no tokenizer, which turns text into tokens.",
            where=source.folder,
            remedy="Convert or export it again with --data, which keeps the tokenizer.",
        )
    return tokenizer


def _check_fitting(arguments: argparse.Namespace) -> None:
    """Refuses an option that the chosen use of the job does not read."""
    unused = _OF_TEXT if arguments.write_text is None else _OF_MODEL
    if arguments.data is None:
        unused = (*unused, "split", "positions", "filler_split")
    for name in unused:
        value = getattr(arguments, name)
        if value not in (None, False):
            where = f"--{name.replace('_', '-')}"
            raise UsageError(
                "An option does not fit the other options.",
                where=where if value is True else f"{where} {value}",
                remedy="Leave it out; `txl help analyze` and --help say what it is for.",
            )
    if arguments.write_text is None and arguments.out is None:
        raise UsageError("There is no folder for the results.", where="--out", remedy="Name one.")


def _check_ascending(values: list[int], option: str) -> None:
    if sorted(set(values)) != values:
        raise UsageError("Numbers ascend.", where=f"{option} {','.join(map(str, values))}")


def _check_keys(arguments: argparse.Namespace) -> None:
    if arguments.keys is None:
        where = f"--key-pattern {arguments.key_pattern[:80]}"
        try:
            arguments.key_list = KeyPattern(arguments.key_pattern)
        except ValueError as error:
            raise UsageError(f"{error}", where=where) from error
    else:
        arguments.key_list = arguments.keys.split(",")
        where = f"--keys {arguments.keys[:80]}"
        if not all(arguments.key_list) or len(set(arguments.key_list)) < len(arguments.key_list):
            raise UsageError("Keys are different words.", where=where)
    if arguments.write_text is None and len(arguments.key_list) < arguments.choices:
        raise UsageError(
            f"There are fewer keys ({len(arguments.key_list)}) than --choices "
            f"({arguments.choices}).",
            where=where,
            remedy="Give more keys, or fewer choices.",
        )


def _memory_lengths(arguments: argparse.Namespace) -> list[int | None]:
    """Returns the memory lengths to read with; of a model that has no choice the only one."""
    model: Any = arguments.experiment.model
    where = f"--memory {','.join(map(str, arguments.memory or []))}"
    if not isinstance(model, ModelConfig):
        if arguments.memory is not None:
            raise UsageError("The states of a recurrent model have no length.", where=where)
        return [None]
    if not model.recurrence:
        if arguments.memory not in (None, [0]):
            raise UsageError("The model has no memory.", where=where)
        return [0]
    usual = arguments.experiment.evaluation.memory_length
    usual = model.memory_length if usual is None else usual
    return arguments.memory or sorted({0, usual})


def _require_memory(arguments: argparse.Namespace) -> None:
    experiment = arguments.experiment
    longest = arguments.memory_lengths[-1] or 0
    rows = {"--batch-size": arguments.batch_size}
    if arguments.data is not None:
        rows["evaluation.batch_size"] = experiment.evaluation.batch_size
    for name, num_rows in rows.items():
        where = f"{name} {num_rows}, --memory {longest}"
        needs = reading_needs(experiment.model, num_rows, segment_length(arguments), longest, where)
        require_memory_of(needs, "The analysis")


def segment_length(arguments: argparse.Namespace) -> int:
    """Returns the tokens of a segment in the evaluations of the run."""
    experiment = arguments.experiment
    return experiment.evaluation.segment_length or experiment.model.segment_length


def evaluation_config(arguments: argparse.Namespace, memory_length: int | None) -> EvaluationConfig:
    """Returns the settings that the run is evaluated with, with all of a memory seen."""
    usual = arguments.experiment.evaluation
    shared = {"batch_size": usual.batch_size, "segment_length": usual.segment_length}
    if memory_length is None:
        return EvaluationConfig(**shared)
    return EvaluationConfig(
        **shared,
        clamp_length=usual.clamp_length,
        memory_length=memory_length,
        same_length=False,
        # So that what a token can see does not depend on where the rows begin.
        warm_up_tokens="all",
    )


def _check_documents(arguments: argparse.Namespace) -> None:
    """Checks that the splits are there, and that documents are told apart."""
    manifest = Manifest.read(arguments.data)
    check_split(manifest, arguments.split, arguments.data)
    if arguments.filler_split is not None:
        check_split(manifest, arguments.filler_split, arguments.data)
    if manifest.split(arguments.split).documents < 2:
        raise MismatchError(
            f"The split {arguments.split} is one document: nothing separates documents.",
            where=arguments.data,
            remedy="Prepare it with --one-document-per line or --document-separator LINE, "
            "or from a file for each document.",
        )


def run(arguments: argparse.Namespace) -> None:
    """Measures, writes the report with its charts, and prints the tables; or writes the text."""
    from .recall_measurement import measure_recall, write_training_text

    if arguments.write_text is not None:
        num_bytes = write_training_text(arguments)
        print(f"{arguments.documents:,} documents, {num_bytes:,} bytes: {arguments.write_text}")
        return
    measure = functools.partial(measure_recall, arguments)
    report = write_report(arguments.out, REPORT_FILE, measure, draw_recall)
    if arguments.json:
        print(json.dumps(report))
    else:
        print_report(report)


def print_report(report: dict[str, Any], console: Console | None = None) -> None:
    """Prints the tables of the report that `txl analyze recall` writes."""
    console = console or Console()
    console.print(
        f"{report['num_documents']:,} documents of {report['document_tokens']:,} tokens for each "
        f"distance, T = {report['segment_length']}; chance is {report['exact_chance']:.2g} "
        f"(exact) and {report['choice_chance']:.2g} (choice)"
    )
    console.print(_recall_table(report))
    if report["loss_by_position"] is not None:
        console.print(_position_table(report["loss_by_position"]))


def _recall_table(report: dict[str, Any]) -> Table:
    names = [memory_label(length) for length in report["memory_lengths"]]
    table = Table(title="Accuracy by distance in segments, exact / choice")
    for head in ("distance", "tokens", *names):
        table.add_column(head, justify="right")
    measured = report["recall"]
    for distance in report["distances_segments"]:
        rows = [each for each in measured if each["distance_segments"] == distance]
        cells = [f"{each['exact_accuracy']:.2f} / {each['choice_accuracy']:.2f}" for each in rows]
        table.add_row(str(distance), f"{rows[0]['key_distance_tokens']:,}", *cells)
    return table


def _position_table(losses: dict[str, Any]) -> Table:
    names = [memory_label(each["memory_length"]) for each in losses["by_memory"]]
    title = f"Nats per token by position in the document, split {losses['split']}"
    table = Table(title=title)
    for head in ("position", "tokens", *names):
        table.add_column(head, justify="right")
    for buckets in zip(*(each["positions"] for each in losses["by_memory"]), strict=True):
        first, last = buckets[0]["first"], buckets[0]["last"]
        last = losses["longest"] - 1 if last is None else last
        name = f"{first:,}" if last == first else f"{first:,} to {last:,}"
        cells = [f"{each['nats_per_token']:.4f}" for each in buckets]
        table.add_row(name, f"{buckets[0]['num_tokens']:,}", *cells)
    return table
