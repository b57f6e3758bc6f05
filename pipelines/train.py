"""Trains a model: `txl train`.

    txl train --config quickstart --data DIR --workdir DIR

The same command goes on from the last checkpoint, bit for bit as if it had
never stopped. TPU: `--tpu local`. Several CPU replicas: `--cpu-replicas 2`.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from pipelines.arguments import (
    add_config_argument,
    add_device_arguments,
    add_override_argument,
    load_experiment,
    override,
)
from pipelines.memory_needs import require_training_memory
from pipelines.workdir import Workdir, add_workdir_argument
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import UsageError

if TYPE_CHECKING:
    import tensorflow as tf

    from pipelines.training_run import TrainingRun
    from txl_tf.evaluation.result import EvaluationResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_config_argument(
        parser, help="named experiment or .json or .toml file (default: what the run began with)"
    )
    parser.add_argument("--data", metavar="DIR", required=True, help="prepared data set")
    add_workdir_argument(parser)
    add_override_argument(parser)
    add_device_arguments(parser, "train on")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    workdir = Workdir(arguments.workdir)
    workdir.check_usable()
    arguments.experiment = _experiment(arguments, workdir)
    require_training_memory(
        arguments.experiment, num_replicas=arguments.cpu_replicas, tpu=arguments.tpu
    )


def run(arguments: argparse.Namespace) -> None:
    """Trains to the end of the run."""
    # First of all, so that nothing is lost however early the machine is taken away.
    with PreemptionWatcher() as watcher:
        # Splitting the CPU comes before anything else that TensorFlow does.
        from txl_tf.distribution.strategy import create_strategy

        strategy = create_strategy(arguments.tpu, arguments.cpu_replicas)
        workdir = Workdir(arguments.workdir)
        train(arguments.experiment, arguments.data, workdir, strategy, watcher)
    print(f"TensorBoard: tensorboard --logdir {workdir.tensorboard}")


def train(
    experiment: ExperimentConfig,
    data_folder: str,
    workdir: Workdir,
    strategy: "tf.distribute.Strategy",
    watcher: PreemptionWatcher | None = None,
) -> "tuple[TrainingRun, EvaluationResult | None]":
    """Trains a run to its end, from its last checkpoint if it has one.

    Args:
        experiment: `ExperimentConfig`.
        data_folder: str. A prepared data set with a split `train`; a split
            `valid` is evaluated.
        workdir: `Workdir`.
        strategy: `tf.distribute.Strategy`.
        watcher: optional `PreemptionWatcher`, already watching.

    Returns:
        Tuple of the run, with its trainer and its evaluator, and the last
        result on the split `valid`, or `None` where there is no such split or
        nothing was left to train.
    """
    import tensorflow as tf

    from pipelines.training_data import TrainingData
    from pipelines.training_run import TrainingRun
    from pipelines.watched_hosts import watched_hosts

    # Without it, sums in parallel kernels may come out in another order.
    tf.config.experimental.enable_op_determinism()
    data = TrainingData(data_folder, experiment)
    with (
        watched_hosts(strategy, watcher),
        TrainingRun(experiment, data, workdir, strategy, watcher) as training_run,
    ):
        result = training_run.train()
    return training_run, result


def _experiment(arguments: argparse.Namespace, workdir: Workdir) -> ExperimentConfig:
    if arguments.config is not None:
        return load_experiment(arguments.config, arguments.overrides)
    if workdir.has_run():
        return override(workdir.read()[0], arguments.overrides)
    raise UsageError(
        "A new run needs a configuration.", where="--config", remedy="Give a name or a file."
    )


if __name__ == "__main__":
    from pipelines.command_line import run_job

    sys.exit(run_job("train"))
