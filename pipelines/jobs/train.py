"""Trains a model: `txl train`.

    txl train --config quickstart --data DIR --workdir DIR

The same command resumes from the last checkpoint, bit for bit as if it had
never stopped; so does `txl train --workdir DIR`. A finished run continues with
`--set training.num_steps=MORE`. `--init-from DIR` begins from another model.
TPU: `--tpu local`. Several CPU replicas: `--cpu-replicas 2`.
"""

import argparse
import dataclasses
import re

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.limits import MAX_STEPS
from txl_tf.data.prepared_dataset import Manifest
from txl_tf.errors import MismatchError, UsageError
from txl_tf.model_folder import Workdir, data_identity, open_model

from ..configs import NAMED_EXPERIMENTS, load_experiment
from ..run.initial_weights import (
    InitialWeights,
    add_initial_arguments,
    initial_weights,
)
from ..run.memory_needs import require_training_memory
from ..run.run_data import RunData
from ..run.training_process import run_training
from ..run.training_settings import further_training
from ..shell.arguments import (
    add_config_argument,
    add_device_arguments,
    add_override_argument,
    add_workdir_argument,
    override,
    overrides_of,
)

_PROFILED_STEPS = re.compile(r"(\d{1,18}):(\d{1,18})", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Training:
    """Checked arguments of the job."""

    workdir: Workdir
    data_folder: str
    experiment: ExperimentConfig
    initial: InitialWeights | None
    arguments: argparse.Namespace


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    run = parser.add_argument_group("run")
    add_config_argument(
        run, help="experiment or .json or .toml file (default: settings of the run)"
    )
    run.add_argument("--data", metavar="DIR", help="prepared data set (default: the run's)")
    add_workdir_argument(run)
    add_override_argument(
        run,
        meaning="change a setting; may be repeated. A larger training.num_steps extends a finished "
        "run; the learning rate of a cosine schedule then jumps up",
    )
    run.add_argument(
        "--profile-steps",
        metavar="FIRST:LAST",
        type=parse_steps,
        help="steps to profile, counted from 1, in whole loops (default: none)",
    )
    add_initial_arguments(parser)
    add_device_arguments(parser, "train on")
    parser.add_argument_group("experiments", ", ".join(NAMED_EXPERIMENTS))


def parse_steps(text: str) -> range:
    """Reads the first and the last step, such as `100:110`; both are profiled."""
    match = _PROFILED_STEPS.fullmatch(text)
    first, last = map(int, match.groups()) if match else (0, 0)
    if not 1 <= first <= last <= MAX_STEPS:
        raise UsageError(
            "The steps to profile must be a first and a last step, counted from 1.",
            where=f"--profile-steps {text[:100]}",
            remedy="Give them as FIRST:LAST, such as 100:110.",
        )
    return range(first, last + 1)


def check_arguments(arguments: argparse.Namespace) -> Training:
    """Checks the arguments before TensorFlow is imported."""
    workdir = Workdir(arguments.workdir)
    workdir.check_usable()
    data_folder = _data_folder(arguments, workdir)
    _experiment(arguments, workdir, None)  # reports wrong settings before missing data
    manifest = Manifest.read(data_folder)
    data = data_identity(manifest)
    experiment = _experiment(arguments, workdir, manifest)
    workdir.check_same(experiment, data)
    workdir.check_unlocked()
    if experiment.task is not None:
        raise MismatchError(
            "The settings are for fine-tuning on a task.",
            where=arguments.config or arguments.workdir,
            remedy="Use `txl finetune`.",
        )
    initial = initial_weights(arguments, workdir, experiment, data)
    require_training_memory(experiment, num_replicas=arguments.cpu_replicas, tpu=arguments.tpu)
    return Training(workdir, data_folder, experiment, initial, arguments)


def run(checked: Training) -> None:
    """Trains to the end of the run."""

    def read_data() -> RunData:
        from ..run.training_data import TrainingData

        return TrainingData(checked.data_folder, checked.experiment)

    run_training(
        "train", checked.arguments, checked.workdir, checked.experiment, checked.initial, read_data
    )


def _data_folder(arguments: argparse.Namespace, workdir: Workdir) -> str:
    """Returns the folder of the data: `--data`, or the run's."""
    if arguments.data is not None:
        return str(arguments.data)
    folder = workdir.describe().data_folder if workdir.has_run() else None
    if folder is None:
        raise UsageError(
            "A new run needs data.",
            where="--data",
            remedy="Name a data set; `txl prepare` makes one.",
        )
    return folder


def _experiment(
    arguments: argparse.Namespace, workdir: Workdir, manifest: Manifest | None
) -> ExperimentConfig:
    """Returns the settings of the run; for a new run, they depend on the manifest of its data."""
    overrides, source = overrides_of(arguments), None
    if workdir.has_run() and arguments.config is None:
        return override(workdir.describe().experiment, overrides)
    if arguments.init_from is not None and not workdir.has_run():
        source = open_model(arguments.init_from, arguments.init_step).description
    if arguments.config is not None:
        size = None if manifest is None else manifest.vocabulary_size
        model = None if source is None else source.model
        return load_experiment(arguments.config, overrides, vocabulary_size=size, model=model)
    if source is None:
        raise UsageError(
            "A new run needs --config or --init-from.", where="--config", remedy="Add one option."
        )
    return further_training(source, overrides, manifest)
