"""Evaluates a model on a split or a text: `txl evaluate`.

    txl evaluate --workdir DIR --data DIR --split test
    txl evaluate --workdir DIR --data DIR --set evaluation.memory_length=640
    txl evaluate --workdir DIR --text FILE --per-token

Every token but the first is scored once, the tail included, and each figure
comes with its denominator. Segment, memory and clamp length may differ from training's. The
model is computed in float32 unless `evaluation.dtype_policy` says otherwise.
Every row but the first reads the text before its part to fill its memory, and
a short text has few rows, so the result hardly depends on their number; with
`evaluation.warm_up_tokens=all` it is the same for any number.

The folder holds a run, a checkpoint, a converted model or an export.
"""

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import numpy as np

from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer
from txl_tf.data.sources.file_kinds import check_text
from txl_tf.data.sources.text_files import text_blocks
from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.errors import UsageError, storage_errors
from txl_tf.evaluation.result import EvaluationResult, perplexity
from txl_tf.imports import tensorflow as tf
from txl_tf.model_folder import (
    ModelDescription,
    ModelFolder,
    Workdir,
    open_dataset,
    open_model,
)
from txl_tf.storage.files import write_file

from ..run.memory_needs import require_evaluation_memory
from ..shell.arguments import (
    STANDARD_INPUT,
    add_device_arguments,
    add_evaluation_argument,
    add_json_argument,
    add_model_arguments,
    check_text_file,
    override_evaluation,
)
from ..shell.progress import say, show_progress

if TYPE_CHECKING:
    from txl_tf.evaluation.evaluator import Evaluator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_evaluation_argument(add_model_arguments(parser))
    text = parser.add_argument_group("text")
    text.add_argument("--data", metavar="DIR", help="prepared data set; optional with --text")
    text.add_argument("--split", help="split to evaluate (default: valid)")
    way = text.add_mutually_exclusive_group()
    way.add_argument("--text", metavar="FILE", help="text file instead; - is the standard input")
    way.add_argument(
        "--per-document", metavar="FILE", help="write the figures of every document to this file"
    )
    figures = parser.add_argument_group("figures")
    figures.add_argument(
        "--per-token", action="store_true", help="with --text: print the nats of each token"
    )
    add_json_argument(figures)
    add_device_arguments(parser, "evaluate on")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateJob:
    """Checked arguments of the job."""

    source: ModelFolder
    description: ModelDescription
    """Model, with the evaluation of `--set`."""
    arguments: argparse.Namespace

    @property
    def split(self) -> str:
        """Split to evaluate."""
        return "valid" if self.arguments.split is None else self.arguments.split

    def open_dataset(self) -> PreparedDataset:
        """Opens the data set, which needs the split unless a text is scored."""
        split = self.split if self.arguments.text is None else None
        return open_dataset(self.arguments.data, self.description, split)

    def print_result(self, result: EvaluationResult) -> None:
        """Prints a result as a table or as JSON."""
        print(json.dumps(result.to_dict()) if self.arguments.json else result, flush=True)


def check_arguments(arguments: argparse.Namespace) -> EvaluateJob:
    """Checks the arguments before TensorFlow is imported."""
    source = open_model(arguments.workdir, arguments.step)
    overrides = list(arguments.overrides)
    if arguments.text is not None:
        # By default one row, so that every token has the longest possible memory.
        overrides.insert(0, "evaluation.batch_size=1")
    description = override_evaluation(source.description, overrides)
    _check_options(arguments)
    _check_model(arguments, source, description)
    require_evaluation_memory(description.model, description.evaluation, tpu=arguments.tpu)
    if arguments.text is not None:
        check_text_file(arguments.text)
    return EvaluateJob(source=source, description=description, arguments=arguments)


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.split is not None and arguments.text is not None:
        raise UsageError(
            "--split and --text exclude each other.",
            where="--split",
            remedy="Leave one of the options out.",
        )
    if arguments.per_token and arguments.text is None:
        raise UsageError("--per-token needs --text.", where="--per-token", remedy="Add --text.")


def _check_model(
    arguments: argparse.Namespace, source: ModelFolder, description: ModelDescription
) -> None:
    if arguments.data is None and arguments.text is None:
        raise UsageError(
            "Neither a data set nor a text is named.",
            where="--data",
            remedy="Name one with --data DIR or --text FILE.",
        )
    if arguments.data is None and not source.description.tokenizer:
        raise UsageError(
            "The text cannot be encoded: the folder of the model has no tokenizer.",
            where=f"--workdir {arguments.workdir}",
            remedy="Name the prepared data set of the model, which has its vocabulary: --data DIR.",
        )
    is_dynamic = description.evaluation.dynamic_learning_rate is not None
    if is_dynamic and (arguments.tpu is not None or arguments.cpu_replicas > 1):
        raise UsageError(
            "Dynamic evaluation runs on a single device.",
            where="--set evaluation.dynamic_learning_rate",
            remedy="Leave out --tpu and --cpu-replicas.",
        )


def run(job: EvaluateJob) -> None:
    """Evaluates, and prints the figures."""
    # The CPU must be split before TensorFlow's first operation.
    from txl_tf.distribution.strategy import create_strategy, is_chief

    arguments = job.arguments
    strategy = create_strategy(arguments.tpu, arguments.cpu_replicas)
    if arguments.text is not None:
        _evaluate_text(job, strategy, is_chief(strategy))
    else:
        _evaluate_split(job, strategy, is_chief(strategy))


def _evaluate_split(job: EvaluateJob, strategy: "tf.distribute.Strategy", is_chief: bool) -> None:
    from txl_tf.evaluation.scores import evaluate_split
    from txl_tf.training.tensorboard_writer import TensorBoardWriter

    dataset, split, path = job.open_dataset(), job.split, job.arguments.per_document
    step, weights = job.source.read_weights()
    evaluator = _create_evaluator(job, strategy, is_chief)
    evaluator.load_arrays(weights)
    nats = np.zeros(0 if path is None else dataset.num_tokens(split))
    observe = None if path is None else nats.__setitem__
    result = evaluate_split(
        evaluator, dataset, split, step=step, track=show_progress, observe=observe
    )
    if not is_chief:
        return
    if path is not None:
        write_documents(path, dataset, split, nats)
    if job.source.run is not None:
        board = Workdir(job.source.folder).tensorboard
        TensorBoardWriter(board).write_evaluation(result)
    job.print_result(result)


def _evaluate_text(job: EvaluateJob, strategy: "tf.distribute.Strategy", is_chief: bool) -> None:
    from txl_tf.evaluation.scores import score_text

    arguments = job.arguments
    if arguments.data is None:
        tokenizer = job.source.tokenizer()
    else:
        dataset = job.open_dataset()
        tokenizer = dataset_tokenizer(dataset.folder, dataset.manifest)
    assert tokenizer is not None
    content = _read(arguments.text)
    step, weights = job.source.read_weights()
    evaluator = _create_evaluator(job, strategy, is_chief)
    evaluator.load_arrays(weights)
    try:
        score = score_text(evaluator, tokenizer, content, step=step, track=show_progress)
    except InvalidTextError as error:
        where = "standard input" if arguments.text == STANDARD_INPUT else arguments.text
        raise error.damaged(
            where, "Give a text of at least two tokens, all known to the tokenizer."
        ) from error
    if not is_chief:
        return
    tokens = zip(score.token_ids.tolist(), score.pieces, score.nats.tolist(), strict=True)
    for token, (token_id, text, nats) in enumerate(tokens if arguments.per_token else ()):
        if arguments.json:
            values = {"id": token_id, "text": text, "nats": nats if token else None}
            print(json.dumps({"token": token, **values}))
        else:
            print(f"{token:>8} {f'{nats:.6f}' if token else '-':>12}  {text!r}")
    job.print_result(score)


def _create_evaluator(
    job: EvaluateJob, strategy: "tf.distribute.Strategy", is_chief: bool
) -> "Evaluator":
    from txl_tf.evaluation.evaluator import create_evaluator

    if is_chief and job.source.description.evaluation == EvaluationConfig():
        say("The evaluation settings are the defaults: lengths are the model's, or as --set says.")
    evaluator = create_evaluator(job.description, strategy)
    # Only TPUs have more than one implementation.
    if isinstance(strategy, tf.distribute.TPUStrategy) and is_chief:
        say(
            f"attention: {evaluator.attention_choice(job.description.evaluation.batch_size).reason}"
        )
    return evaluator


def write_documents(path: str, dataset: PreparedDataset, split: str, nats: np.ndarray) -> None:
    """Writes a line of JSON for each document of a split, replacing an existing file.

    `nats` has the score of each token. It counts for the token's own document, also at the
    beginning of a document. The first token of the split has none.
    """
    starts = np.union1d([0], np.flatnonzero(dataset.read_document_starts(split, 0, len(nats))))
    counts = np.diff(starts, append=len(nats))
    counts[0] -= 1
    totals = np.add.reduceat(nats, starts)
    rows = zip(starts.tolist(), counts.tolist(), totals.tolist(), strict=True)
    lines = []
    for number, (start, count, total) in enumerate(rows):
        figures = {
            "document": number,
            "first_token": start,
            "num_tokens": count,
            "total_nats": total,
            "nats_per_token": total / count if count else None,
            "perplexity": perplexity(total / count) if count else None,
        }
        lines.append(json.dumps(figures) + "\n")
    with storage_errors(
        "The figures of the documents cannot be written",
        path,
        "Check the folder, the disk and the permissions.",
    ):
        write_file(path, "".join(lines).encode())


def _read(path: str) -> bytes:
    if path == STANDARD_INPUT:
        content = sys.stdin.buffer.read()
        check_text(content, "standard input")
        return content
    return b"".join(text_blocks(path, may_be_json=False))
