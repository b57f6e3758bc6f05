"""Evaluates a model on a split or a text: `txl evaluate`.

    txl evaluate --workdir DIR --data DIR --split test
    txl evaluate --workdir DIR --data DIR --set evaluation.memory_length=640
    txl evaluate --workdir DIR --data DIR --watch
    txl evaluate --workdir DIR --text FILE --per-token

Every token is scored once, the tail included, and each figure comes with its
denominator. Segment, memory and clamp length may differ from training's. The
model is computed in float32 unless `evaluation.dtype_policy` says otherwise.
`evaluation.warm_up_tokens` lets every row read what is before its part of the
text; with `all` the result is the same for any number of rows.

The folder is that of a run, a checkpoint, a converted model or an export.
"""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.errors import UsageError
from txl_tf.model_folder import open_model

from .arguments import (
    MAX_SECONDS,
    MAX_STEP,
    add_device_arguments,
    add_json_argument,
    add_model_arguments,
    add_number,
    add_override_argument,
    override,
)
from .evaluation.scores import TextScores, check_text_file
from .memory_needs import require_evaluation_memory
from .progress import say, show_progress
from .workdir import Workdir, open_dataset

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.data.tokenizers.tokenizer import Tokenizer
    from txl_tf.evaluation.evaluator import Evaluator
    from txl_tf.evaluation.result import EvaluationResult

_LEAST_SECONDS = 1e-3
# Options, each with the option that excludes it, or with the option that it needs.
_EXCLUDED = {"split": "text", "step": "watch"}
_NEEDED = {"per_token": "text", "watch_seconds": "watch"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_override_argument(add_model_arguments(parser), "evaluation.FIELD=VALUE")
    text = parser.add_argument_group("text")
    text.add_argument("--data", metavar="DIR", help="prepared data set; not needed with --text")
    text.add_argument("--split", help="split to evaluate (default: valid)")
    way = text.add_mutually_exclusive_group()
    way.add_argument("--text", metavar="FILE", help="text file instead; - for the standard input")
    way.add_argument(
        "--watch", action="store_true", help="evaluate each checkpoint until the run ends"
    )
    way.add_argument(
        "--per-document", metavar="FILE", help="write a line of JSON for every document"
    )
    add_number(
        text,
        "--watch-seconds",
        _LEAST_SECONDS,
        MAX_SECONDS,
        "longest wait for a checkpoint (default: for ever)",
        metavar="SECONDS",
    )
    figures = parser.add_argument_group("figures")
    figures.add_argument(
        "--per-token", action="store_true", help="with --text: print the nats of every token"
    )
    add_number(
        figures,
        "--num-words",
        1,
        MAX_STEP,
        "words of the text (default: between white space)",
    )
    add_json_argument(figures)
    add_device_arguments(parser, "share the rows on")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    arguments.source = open_model(arguments.workdir, arguments.step)
    for assignment in arguments.overrides:
        if not assignment.startswith("evaluation."):
            raise UsageError(
                "Only `evaluation.*` settings can be changed for a trained model.",
                where=f"--set {assignment}",
                remedy="Leave it out; `txl train` begins a run with other settings.",
            )
    overrides = list(arguments.overrides)
    if arguments.text is not None:
        # By default one row, so that every token has the longest possible memory.
        overrides.insert(0, "evaluation.batch_size=1")
    arguments.experiment = override(arguments.source.experiment, overrides)
    _check_combination(arguments)
    require_evaluation_memory(
        arguments.experiment.model, arguments.experiment.evaluation, tpu=arguments.tpu
    )
    if arguments.text is not None:
        check_text_file(arguments.text)


def _check_combination(arguments: argparse.Namespace) -> None:
    given = {name for name, value in vars(arguments).items() if value not in (None, False)}
    for option, other in _EXCLUDED.items():
        if {option, other} <= given:
            what, where = "The two do not go together.", f"--{option} --{other}"
            raise UsageError(what, where=where, remedy="Leave one of them out.")
    for option, needed in _NEEDED.items():
        if option in given and needed not in given:
            where = f"--{option.replace('_', '-')}"
            raise UsageError(f"This goes with --{needed}.", where=where, remedy="Leave it out.")
    has_tokenizer = arguments.text is not None and arguments.source.description.tokenizer
    if arguments.data is None and not has_tokenizer:
        if arguments.text is None:
            raise UsageError(
                "There is no data.", where="--data", remedy="Name a prepared data set."
            )
        raise UsageError(
            "The folder of the model has no tokenizer, and the text must be encoded.",
            where=f"--workdir {arguments.workdir}",
            remedy="Name the prepared data set of the model, which has its vocabulary: --data DIR.",
        )
    if arguments.watch and arguments.source.run is None:
        what = "Only a run gets new checkpoints."
        raise UsageError(what, where="--watch", remedy="Leave it out, or name a run.")
    is_dynamic = arguments.experiment.evaluation.dynamic_learning_rate is not None
    if is_dynamic and (arguments.tpu is not None or arguments.cpu_replicas > 1):
        raise UsageError(
            "Weights that follow the text read one row, on one device.",
            where="--set evaluation.dynamic_learning_rate",
            remedy="Leave out --tpu and --cpu-replicas.",
        )


def run(arguments: argparse.Namespace) -> None:
    """Evaluates, and prints the figures."""
    # The CPU must be split before TensorFlow's first operation.
    from txl_tf.distribution.strategy import create_strategy, is_chief, num_workers

    strategy = create_strategy(arguments.tpu, arguments.cpu_replicas)
    arguments.is_chief = is_chief(strategy)
    if arguments.watch and num_workers(strategy) > 1:
        raise UsageError(
            "Several workers could see different checkpoints.",
            where="--watch and TF_CONFIG",
            remedy="Watch with one of them, and unset TF_CONFIG there.",
        )
    if arguments.text is not None:
        _evaluate_text(arguments, strategy)
    elif arguments.watch:
        _watch(arguments, strategy)
    else:
        _evaluate_split(arguments, strategy)


def _evaluate_split(arguments: argparse.Namespace, strategy: "tf.distribute.Strategy") -> None:
    from txl_tf.training.tensorboard import TensorBoardWriter

    from .evaluation.scores import DocumentScores
    from .evaluation.splits import evaluate_split

    dataset = _open_dataset(arguments)
    # Before the weights are read, so that weights and figures belong to the same run.
    source = arguments.source
    writes = arguments.is_chief and source.run is not None
    board_folder = Workdir(source.folder).guarded_tensorboard() if writes else None
    step, weights = source.read_weights()
    evaluator = _create_evaluator(arguments, strategy)
    evaluator.load_arrays(weights)
    split, per_document = arguments.split, arguments.per_document
    documents = None if per_document is None else DocumentScores(dataset, split)
    observe = None if documents is None else documents.observe
    result = evaluate_split(
        evaluator, dataset, split, step, show_progress, observe, arguments.num_words
    )
    if documents is not None and arguments.is_chief:
        documents.write(per_document)
    if board_folder is not None:
        TensorBoardWriter(board_folder, 1.0).write_evaluation(result)
    _print(result, arguments)


def _watch(arguments: argparse.Namespace, strategy: "tf.distribute.Strategy") -> None:
    from .evaluation.splits import evaluate_split
    from .evaluation.watch import watch_checkpoints

    dataset = _open_dataset(arguments)
    evaluator = _create_evaluator(arguments, strategy)

    def evaluate(step: int, weights: "dict[str, np.ndarray]", track: Any) -> "EvaluationResult":
        evaluator.load_arrays(weights)
        return evaluate_split(
            evaluator, dataset, arguments.split, step, track, num_words=arguments.num_words
        )

    conditions = {
        "data": dataset.fingerprint,
        "evaluation": arguments.experiment.evaluation.to_dict(),
        "num_words": arguments.num_words,
    }
    watch_checkpoints(
        Workdir(arguments.source.folder),
        arguments.split,
        conditions,
        evaluate,
        lambda result: _print(result, arguments),
        arguments.watch_seconds,
    )


def _evaluate_text(arguments: argparse.Namespace, strategy: "tf.distribute.Strategy") -> None:
    from .evaluation.splits import statistics_text

    dataset = None if arguments.data is None else _open_dataset(arguments)
    scores = TextScores(arguments.text, _tokenizer(arguments, dataset))
    step, weights = arguments.source.read_weights()
    evaluator = _create_evaluator(arguments, strategy)
    evaluator.load_arrays(weights)
    text = scores.text
    if arguments.num_words is not None:
        text = dataclasses.replace(text, num_words=arguments.num_words)
    result = evaluator.evaluate(
        text,
        step=step,
        track=show_progress,
        observe=scores.observe,
        statistics_text=statistics_text(evaluator, dataset),
    )
    if arguments.per_token and arguments.is_chief:
        scores.print_scores(arguments.json)
    _print(result, arguments)


def _create_evaluator(
    arguments: argparse.Namespace, strategy: "tf.distribute.Strategy"
) -> "Evaluator":
    import tensorflow as tf

    from .evaluation.splits import create_evaluator

    if arguments.is_chief and arguments.source.experiment.evaluation == EvaluationConfig():
        say("no lengths of evaluations are stored: unless set, they are those of the model")
    evaluator = create_evaluator(arguments.experiment, strategy)
    # Only TPUs have more than one implementation.
    if isinstance(strategy, tf.distribute.TPUStrategy) and arguments.is_chief:
        choice = evaluator.attention(arguments.experiment.evaluation.batch_size)
        say(f"attention: {choice.reason}")
    return evaluator


def _open_dataset(arguments: argparse.Namespace) -> "PreparedDataset":
    arguments.split = arguments.split or "valid"
    split = arguments.split if arguments.text is None else None
    return open_dataset(arguments.data, arguments.experiment, arguments.source.description, split)


def _tokenizer(arguments: argparse.Namespace, dataset: "PreparedDataset | None") -> "Tokenizer":
    """Returns the tokenizer of the data set if there is one, else of the model."""
    if dataset is None:
        return arguments.source.tokenizer()
    from txl_tf.data.prepared_dataset import dataset_tokenizer

    return dataset_tokenizer(dataset.folder, dataset.manifest)


def _print(result: "EvaluationResult", arguments: argparse.Namespace) -> None:
    from .evaluation.result_table import result_table

    if arguments.is_chief and arguments.json:
        print(json.dumps(result.to_dict()), flush=True)
    elif arguments.is_chief:
        print(result_table([result]), flush=True)
