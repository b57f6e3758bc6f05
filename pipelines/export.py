"""Writes a trained model as a SavedModel for serving: `txl export`.

    txl export --workdir DIR --out DIR

The SavedModel is `DIR/STEP`: TensorFlow Serving takes the folder `DIR` and
serves the highest number in it.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from pipelines.workdir import Workdir, add_workdir_argument
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_workdir_argument(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of all versions")
    parser.add_argument("--memory-length", type=int, help="tokens remembered; default: the model's")
    parser.add_argument("--step", type=int, help="checkpoint to export (default: the newest)")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    arguments.experiment, arguments.data_identity = Workdir(arguments.workdir).read()
    if arguments.memory_length is not None and arguments.memory_length < 0:
        raise UsageError(
            "The value is out of range.", where=f"--memory-length {arguments.memory_length}"
        )
    if Path(arguments.out).exists() and not Path(arguments.out).is_dir():
        raise UsageError("The output is not a folder.", where=f"--out {arguments.out}")


def run(arguments: argparse.Namespace) -> None:
    """Exports and prints the folder."""
    from pipelines.trained_model import build_model, read_weights
    from txl_tf.export import export_saved_model

    step, weights = read_weights(Workdir(arguments.workdir), arguments.step)
    config = arguments.experiment.model
    if arguments.memory_length is not None:
        config = config.replace(memory_length=arguments.memory_length)
    folder = export_saved_model(
        build_model(config, weights),
        Path(arguments.out) / str(step),
        model_card(arguments.experiment, arguments.data_identity, step),
    )
    print(f"SavedModel: {folder}")


def model_card(
    experiment: ExperimentConfig, data: dict[str, Any], step: int, **quality: Any
) -> dict[str, Any]:
    """What a user of an export wants to know of it.

    Args:
        experiment: `ExperimentConfig`.
        data: dict. Identity of the training data.
        step: int. Training steps.
        **quality: measured figures by name.

    Returns:
        Dict of JSON values.
    """
    import txl_tf

    return {
        "software": f"txl-tf {txl_tf.__version__}",
        "model": experiment.model.to_dict(),
        "training": experiment.training.to_dict(),
        "optimizer": experiment.optimizer.to_dict(),
        "data": data,
        "step": step,
        "quality": quality,
    }


if __name__ == "__main__":
    from pipelines.command_line import run_job

    sys.exit(run_job("export"))
