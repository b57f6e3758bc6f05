"""Process of a training run: the steps before the first import of TensorFlow, and the run."""

import argparse
from collections.abc import Callable

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.model_folder import Workdir

from ..shell.tensorflow_import import load_tensorflow
from .initial_weights import InitialWeights
from .run_data import RunData
from .training_job import TrainingJob


def run_training(
    job: str,
    arguments: argparse.Namespace,
    workdir: Workdir,
    experiment: ExperimentConfig,
    initial: InitialWeights | None,
    read_data: Callable[[], RunData],
) -> None:
    """Trains a run to its end for the command `txl JOB`; `read_data` may use TensorFlow."""
    # 1. The watcher comes first, so that an early preemption loses nothing.
    with PreemptionWatcher() as watcher:
        # 2. TensorFlow is loaded, which takes some 4 s, and the CPU is split into `--cpu-replicas`
        # devices before TensorFlow's first operation.
        load_tensorflow(job)
        from txl_tf.distribution.strategy import create_strategy

        strategy = create_strategy(arguments.tpu, arguments.cpu_replicas)
        # 3. Only then are the modules of a run imported, whose operations would fix the devices.
        from .training_run import train

        train(
            TrainingJob(
                experiment=experiment,
                data=read_data(),
                workdir=workdir,
                strategy=strategy,
                watcher=watcher,
                profile_steps=getattr(arguments, "profile_steps", None),
                initial=initial,
            )
        )
    print(workdir.tensorboard_line)
