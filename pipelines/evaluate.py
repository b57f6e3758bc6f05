"""Evaluates a run on a split: `txl evaluate`.

    txl evaluate --workdir DIR --data DIR --split test
    txl evaluate --workdir DIR --data DIR --set evaluation.memory_length=640

Every token of the split is scored once, its tail included. Segment, memory and
clamp length may differ from training's.
"""

import argparse
import json
import sys

from pipelines.experiments import add_override_argument, override
from pipelines.workdir import Workdir, add_workdir_argument, check_tokenizer
from txl_tf.data.manifest import Manifest
from txl_tf.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_workdir_argument(parser)
    parser.add_argument("--data", metavar="DIR", required=True, help="prepared data set")
    parser.add_argument("--split", default="valid", help="split to evaluate (default: valid)")
    parser.add_argument("--step", type=int, help="checkpoint to evaluate (default: the newest)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_override_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    experiment, arguments.data_identity = Workdir(arguments.workdir).read()
    for assignment in arguments.overrides:
        if not assignment.startswith("evaluation."):
            raise UsageError(
                "The model of a run is what it was trained as.",
                where=f"--set {assignment}",
                remedy="Only `evaluation.` can be changed here.",
            )
    arguments.experiment = override(experiment, arguments.overrides)


def run(arguments: argparse.Namespace) -> None:
    """Evaluates and prints the figures."""
    from pipelines.split_evaluation import create_evaluator, evaluate_split
    from pipelines.trained_model import read_weights
    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.training.tensorboard_writer import TensorBoardWriter

    workdir = Workdir(arguments.workdir)
    dataset = PreparedDataset.open(arguments.data)
    _check_split(dataset.manifest, arguments)
    check_tokenizer(arguments.data_identity, dataset.manifest, arguments.data)
    step, weights = read_weights(workdir, arguments.step)
    evaluator = create_evaluator(arguments.experiment)
    evaluator.load_arrays(weights)
    result = evaluate_split(evaluator, dataset, arguments.split, step, track=show_progress)
    TensorBoardWriter(workdir.tensorboard, 1.0).write_evaluation(result)
    print(json.dumps(result.to_dict()) if arguments.json else result.describe())


def show_progress(batches, num_batches: int):
    """Passes batches on; a bar on a terminal.

    Args:
        batches: iterable.
        num_batches: int.

    Yields:
        The batches.
    """
    if not sys.stderr.isatty():
        yield from batches
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(
        batches,
        "evaluating",
        total=num_batches,
        console=Console(stderr=True),
        transient=True,
    )


def _check_split(manifest: Manifest, arguments: argparse.Namespace) -> None:
    if arguments.split not in manifest.split_names:
        raise UsageError(
            f"There is no split {arguments.split} in this data set.",
            where=arguments.data,
            remedy=f"There are: {', '.join(manifest.split_names)}.",
        )


if __name__ == "__main__":
    from pipelines.command_line import run_job

    sys.exit(run_job("evaluate"))
