"""Trains a model: `txl train`.

    txl train --config quickstart --data DIR --workdir DIR

The same command goes on from the last checkpoint, bit for bit as if it had
never stopped. TPU: `--tpu local`. Several CPU replicas: `--cpu-replicas 2`.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.experiments import add_override_argument, load_experiment, override
from pipelines.workdir import (
    Workdir,
    add_workdir_argument,
    check_vocabulary,
    data_identity,
    identity,
)
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.data.manifest import Manifest
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.errors import DataDamagedError, UsageError

if TYPE_CHECKING:
    import tensorflow as tf

    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.evaluation.evaluation_result import EvaluationResult
    from txl_tf.evaluation.evaluator import Evaluator
    from txl_tf.training.trainer import Trainer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument(
        "--config",
        metavar="NAME|FILE",
        help="named experiment or .json or .toml file; default: what the run began with",
    )
    parser.add_argument("--data", metavar="DIR", required=True, help="prepared data set")
    add_workdir_argument(parser)
    add_override_argument(parser)
    parser.add_argument("--tpu", metavar="local|NAME|ADDRESS", help="train on this TPU")
    parser.add_argument(
        "--cpu-replicas",
        type=int,
        default=1,
        metavar="N",
        help="split the CPU into N replicas (default: 1)",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    workdir = Workdir(Path(arguments.workdir))
    workdir.check_usable()
    arguments.experiment = _experiment(arguments, workdir)
    replicas = arguments.cpu_replicas
    if replicas < 1:
        raise UsageError("There must be at least one replica.", where=f"--cpu-replicas {replicas}")
    if arguments.tpu is not None and replicas > 1:
        raise UsageError(
            "A run has either a TPU or CPU replicas.",
            where=f"--tpu {arguments.tpu} --cpu-replicas {replicas}",
            remedy="Leave one of the two out.",
        )


def run(arguments: argparse.Namespace) -> None:
    """Trains to the end of the run."""
    # Splitting the CPU comes before anything else that TensorFlow does.
    from txl_tf.distribution.strategy import create_strategy

    strategy = create_strategy(arguments.tpu, arguments.cpu_replicas)
    train(arguments.experiment, arguments.data, Workdir(Path(arguments.workdir)), strategy)
    print(f"TensorBoard: tensorboard --logdir {Workdir(Path(arguments.workdir)).tensorboard}")


def train(
    experiment: ExperimentConfig,
    data_folder: str,
    workdir: Workdir,
    strategy: "tf.distribute.Strategy",
) -> "tuple[Trainer, EvaluationResult | None]":
    """Trains a run to its end, from its last checkpoint if it has one.

    Args:
        experiment: `ExperimentConfig`.
        data_folder: str. A prepared data set with a split `train`; a split
            `valid` is evaluated.
        workdir: `Workdir`.
        strategy: `tf.distribute.Strategy`.

    Returns:
        Tuple of the trainer and the last result on the split `valid`, or
        `None` where there is no such split or nothing was left to train.
    """
    import tensorflow as tf

    from pipelines.training_progress import TrainingProgress
    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.data.segment_reader import SegmentReader
    from txl_tf.training.checkpoint_store import CheckpointStore
    from txl_tf.training.tensorboard_writer import TensorBoardWriter
    from txl_tf.training.trainer import Trainer

    # Without it, sums in parallel kernels may come out in another order.
    tf.config.experimental.enable_op_determinism()

    # === Data ===
    dataset = PreparedDataset.open(data_folder)
    plan = plan_of(experiment, dataset.manifest, data_folder)
    reader = SegmentReader(dataset, "train", plan)

    # === Run ===
    run_identity = identity(experiment, data_identity(dataset.manifest))
    workdir.begin(experiment, run_identity["data"])
    trainer = Trainer(experiment, strategy, reader.dataset_fn)
    store = CheckpointStore(
        workdir.checkpoints, run_identity, experiment.training.num_kept_checkpoints
    )
    evaluator = None
    bytes_per_token = _bytes_per_token(dataset.manifest, "train")
    board = TensorBoardWriter(workdir.tensorboard, bytes_per_token)
    result = None

    # === Loop ===
    with TrainingProgress(experiment.training.num_steps, bytes_per_token) as progress:
        resume(trainer, store, progress)
        try:
            for report in trainer.run():
                progress.update(report)
                board.write_training(report)
                is_last = report.step == experiment.training.num_steps
                if is_last or report.step % experiment.training.checkpoint_every_steps == 0:
                    store.save(report.step, trainer.state())
                if "valid" in dataset.manifest.split_names and _is_due(
                    report.step, experiment.training.evaluate_every_steps, is_last
                ):
                    evaluator = evaluator or create_evaluator(experiment)
                    evaluator.load_arrays(trainer.inference_weights())
                    result = evaluate_split(evaluator, dataset, "valid", report.step)
                    board.write_evaluation(result)
                    progress.say(result.describe())
        except (tf.errors.DataLossError, tf.errors.FailedPreconditionError) as error:
            raise reader.explain_data_loss(error) from error
    return trainer, result


def resume(trainer: "Trainer", store, progress) -> None:
    """Takes up the newest checkpoint that is whole, if there is one.

    Args:
        trainer: `Trainer`.
        store: `CheckpointStore`.
        progress: `TrainingProgress`, which is told.
    """
    latest = store.load_latest()
    if latest is None:
        return
    step, arrays, complaints = latest
    for complaint in complaints:
        progress.say(f"A checkpoint is damaged and was passed over: {complaint}")
    trainer.load_state(arrays)
    progress.begin_at(step)
    progress.say(f"Going on from the checkpoint of step {step}.")


def plan_of(experiment: ExperimentConfig, manifest: Manifest, where: str) -> SegmentPlan:
    """Decides which tokens every row reads at every step.

    Args:
        experiment: `ExperimentConfig`.
        manifest: `Manifest` of the data.
        where: str. Where the data set is.

    Returns:
        The plan.

    Raises:
        DataDamagedError: If there is no split `train`, or not enough in it.
        MismatchError: If the model has another vocabulary.
    """
    if "train" not in manifest.split_names:
        raise DataDamagedError(
            "The data set has no split `train`.",
            where=where,
            remedy=f"It has: {', '.join(manifest.split_names)}.",
        )
    check_vocabulary(experiment, manifest, where)
    return SegmentPlan(
        num_tokens=manifest.split("train").tokens,
        num_rows=experiment.training.global_batch_size,
        segment_length=experiment.model.segment_length,
        seed=experiment.training.seed,
        fingerprint=manifest.fingerprint,
        rotate=experiment.training.rotate_epochs,
    )


def create_evaluator(experiment: ExperimentConfig) -> "Evaluator":
    """Builds the evaluator of an experiment, without weights.

    Args:
        experiment: `ExperimentConfig`.

    Returns:
        An `Evaluator`.
    """
    from txl_tf.evaluation.evaluator import Evaluator

    return Evaluator(
        experiment.model,
        experiment.evaluation,
        dtype_policy=experiment.training.dtype_policy,
        jit_compile=experiment.training.jit_compile,
    )


def evaluate_split(
    evaluator: "Evaluator", dataset: "PreparedDataset", split: str, step: int, track=None
) -> "EvaluationResult":
    """Evaluates a split of a prepared data set.

    Args:
        evaluator: `Evaluator` with weights.
        dataset: `PreparedDataset`.
        split: str. Name of the split.
        step: int. Training steps of the weights.
        track: optional function, see `Evaluator.evaluate`.

    Returns:
        An `EvaluationResult`.
    """
    return evaluator.evaluate(
        split,
        dataset.num_tokens(split),
        lambda start, stop: dataset.read_tokens(split, start, stop),
        bytes_per_token=_bytes_per_token(dataset.manifest, split),
        step=step,
        track=track,
    )


def _experiment(arguments: argparse.Namespace, workdir: Workdir) -> ExperimentConfig:
    if arguments.config is not None:
        return load_experiment(arguments.config, arguments.overrides)
    if workdir.has_run():
        return override(workdir.read()[0], arguments.overrides)
    raise UsageError(
        "A new run needs a configuration.", where="--config", remedy="Give a name or a file."
    )


def _is_due(step: int, period: int | None, is_last: bool) -> bool:
    return is_last or (period is not None and step % period == 0)


def _bytes_per_token(manifest: Manifest, split: str) -> float:
    entry = manifest.split(split)
    return entry.bytes / entry.tokens


if __name__ == "__main__":
    from pipelines.command_line import run_job

    sys.exit(run_job("train"))
