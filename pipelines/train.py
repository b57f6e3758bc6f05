"""Trains a model: `txl train`.

    txl train --config quickstart --data DIR --workdir DIR

The same command resumes from the last checkpoint, bit for bit as if it had
never stopped; so does `txl train --workdir DIR`. A finished run goes on with
`--set training.num_steps=MORE`. `--init-from DIR` begins from another model.
TPU: `--tpu local`. Several CPU replicas: `--cpu-replicas 2`.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.manifest import Manifest
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import MismatchError, PreemptedError, UsageError
from txl_tf.model_folder import open_model

from .arguments import (
    add_config_argument,
    add_device_arguments,
    add_override_argument,
    load_experiment,
    overridden_settings,
    override,
)
from .configs import NAMED_EXPERIMENTS
from .exit_codes import finish, report
from .finetuning_settings import further_training
from .initial_weights import (
    InitialWeights,
    add_initial_arguments,
    initial_weights,
    overrides_of,
)
from .memory_needs import require_training_memory
from .progress import say
from .step_profile import add_profile_argument
from .workdir import Workdir, add_workdir_argument, data_identity

if TYPE_CHECKING:
    import tensorflow as tf

    from txl_tf.distribution.remote_hosts import RemoteHost
    from txl_tf.evaluation.result import EvaluationResult
    from txl_tf.training.metrics import RunClock

    from .run_data import RunData
    from .training_run import TrainingRun


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
        meaning="change a setting; may be repeated. More training.num_steps extend a finished run: "
        "a cosine then jumps up to that of the longer run",
    )
    add_profile_argument(run)
    add_initial_arguments(parser)
    add_device_arguments(parser, "train on")
    parser.add_argument_group("experiments", ", ".join(NAMED_EXPERIMENTS))


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    workdir = Workdir(arguments.workdir)
    workdir.check_usable()
    arguments.data = _data_folder(arguments, workdir)
    # Reports wrong settings before missing data.
    _experiment(arguments, workdir)
    manifest = Manifest.read(arguments.data)
    data = data_identity(manifest)
    workdir.check_data(data)
    arguments.experiment = _experiment(arguments, workdir, manifest)
    if arguments.experiment.task is not None:
        raise MismatchError(
            "The settings are of a task, which is trained on examples.",
            where=arguments.config or arguments.workdir,
            remedy="`txl finetune` trains it.",
        )
    arguments.initial = initial_weights(arguments, workdir, arguments.experiment, data)
    require_training_memory(
        arguments.experiment, num_replicas=arguments.cpu_replicas, tpu=arguments.tpu
    )


def run(arguments: argparse.Namespace) -> None:
    """Trains to the end of the run."""
    from txl_tf.training.metrics import RunClock

    clock = RunClock()
    # Entered first, so that an early preemption loses nothing.
    with PreemptionWatcher() as watcher:
        # The CPU must be split before TensorFlow's first operation.
        from txl_tf.distribution.strategy import create_strategy

        strategy = create_strategy(arguments.tpu, arguments.cpu_replicas)
        workdir = Workdir(arguments.workdir)
        if arguments.config in NAMED_EXPERIMENTS and not workdir.has_run():
            _say_what_data_and_machine_decide(arguments)
        options = RunOptions(
            watcher=watcher,
            profile_steps=arguments.profile_steps,
            initial=arguments.initial,
            clock=clock,
        )
        train(arguments.experiment, arguments.data, workdir, strategy, **options)
    print(workdir.tensorboard_line)


def _say_what_data_and_machine_decide(arguments: argparse.Namespace) -> None:
    """Prints the differences from the named experiment, and a faster precision of this machine."""
    from .device_peak import WORTHWHILE_GAIN, bfloat16_gain

    named, model = NAMED_EXPERIMENTS[arguments.config]().model, arguments.experiment.model
    changed = [
        f"model.{name}={json.dumps(getattr(model, name))}"
        for name in ("vocabulary_size", "cutoffs")
        if getattr(model, name) != getattr(named, name)
    ]
    if changed:
        say(f"For the vocabulary of the data, {arguments.config} has {', '.join(changed)}.")
    if arguments.tpu is None and "training.dtype_policy" not in overridden_settings(
        arguments.overrides
    ):
        gain = bfloat16_gain()
        advice = "float32, which this run takes, is the faster precision"
        if gain >= WORTHWHILE_GAIN:
            advice = "--set training.dtype_policy=mixed_bfloat16 makes a new run faster"
        say(
            f"Here large products in bfloat16 are {gain:.2g} times as fast as in float32: {advice}."
        )


class RunOptions(TypedDict, total=False):
    """Optional arguments of `TrainingRun`."""

    watcher: PreemptionWatcher | None
    profile_steps: range | None
    initial: InitialWeights | None
    clock: "RunClock"


def train(
    experiment: ExperimentConfig,
    data_folder: str,
    workdir: Workdir,
    strategy: "tf.distribute.Strategy",
    **options: Unpack[RunOptions],
) -> "tuple[TrainingRun, EvaluationResult | None]":
    """Trains a run to its end, from its last checkpoint if it has one.

    `data_folder` is a prepared data set with a split `train`. Returns the run and its last result
    on the split `valid`; `None` without such a split, or if nothing was left to train.
    """
    from txl_tf.training.metrics import RunClock

    from .training_data import TrainingData

    # Started before the data are opened, which counts as time of the run.
    options.setdefault("clock", RunClock())
    data = TrainingData(data_folder, experiment)
    return run_training(experiment, data, workdir, strategy, **options)


def run_training(
    experiment: ExperimentConfig,
    data: "RunData",
    workdir: Workdir,
    strategy: "tf.distribute.Strategy",
    **options: Unpack[RunOptions],
) -> "tuple[TrainingRun, Any]":
    """Trains a run on `data`; otherwise as `train`."""
    import tensorflow as tf

    from .training_run import TrainingRun

    # Parallel kernels otherwise add in a varying order.
    tf.config.experimental.enable_op_determinism()
    with (
        watched_hosts(strategy, options.get("watcher")),
        TrainingRun(experiment, data, workdir, strategy, **options) as training_run,
    ):
        result = training_run.train()
    return training_run, result


@contextlib.contextmanager
def watched_hosts(
    strategy: "tf.distribute.Strategy", watcher: PreemptionWatcher | None
) -> Iterator[None]:
    """Stops a run when one of its hosts is preempted, and ends the process when one is lost.

    The block is left first, so that a pending checkpoint is still written. TensorFlow does not
    survive a lost host: it raises for every dropped object and may abort. So the process reports
    the loss and ends with the exit code of a preemption.
    """
    import tensorflow as tf

    from txl_tf.distribution.remote_hosts import HostWatcher, remote_hosts

    hosts = remote_hosts(strategy)
    if not hosts:
        yield
        return
    leaving = []

    def leave(host: "RemoteHost") -> None:
        leaving.append(host)
        if watcher is not None:
            watcher.notice(f"the host {host.address} is being taken away")

    # The main thread waits inside TensorFlow for a silent host, and nothing interrupts it.
    with (
        _quiet_when_dropped(),
        HostWatcher(hosts, leave, lambda host: _end_process([host])),
    ):
        try:
            yield
        except (tf.errors.OpError, RuntimeError):
            lost = [host for host in hosts if not host.answers()]
            if not lost:
                raise
            _end_process(lost)
        finally:
            for host in leaving:
                with contextlib.suppress(tf.errors.OpError, RuntimeError):
                    host.release()


def _end_process(lost: "list[RemoteHost]") -> None:
    named = ", ".join(host.address for host in lost[:3])
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    error = PreemptedError(
        "A host of the slice does not answer any more.",
        where=f"{named}{more}",
        remedy="Run the same command to resume once the server of the host runs again.",
    )
    os._exit(finish(report(error)))


@contextlib.contextmanager
def _quiet_when_dropped() -> Iterator[None]:
    """Suppresses TensorFlow errors that are raised while objects are dropped."""
    import tensorflow as tf

    before = sys.unraisablehook

    def ignore_operations(arguments: "sys.UnraisableHookArgs") -> None:
        if not isinstance(arguments.exc_value, tf.errors.OpError):
            before(arguments)

    sys.unraisablehook = ignore_operations
    try:
        yield
    finally:
        sys.unraisablehook = before


def _data_folder(arguments: argparse.Namespace, workdir: Workdir) -> str:
    """Returns the folder of the data: `--data`, or the run's."""
    if arguments.data is not None:
        return str(arguments.data)
    found = workdir.describe().data_folder if workdir.has_run() else None
    if found is None:
        raise UsageError(
            "A new run needs data.",
            where="--data",
            remedy="Name a data set; `txl prepare` makes one.",
        )
    return found


def _experiment(
    arguments: argparse.Namespace, workdir: Workdir, manifest: Manifest | None = None
) -> ExperimentConfig:
    """Returns the settings of the run; for a new run, they depend on the manifest of its data."""
    overrides, source = overrides_of(arguments), None
    size = None if manifest is None else manifest.vocabulary_size
    if workdir.has_run() and arguments.config is None:
        return override(workdir.describe().experiment, overrides)
    if arguments.init_from is not None and not workdir.has_run():
        source = open_model(arguments.init_from, arguments.init_step).experiment
    if arguments.config is not None:
        model = None if source is None else source.model
        return load_experiment(arguments.config, overrides, vocabulary_size=size, model=model)
    if source is None:
        raise UsageError(
            "A new run needs a configuration.", where="--config", remedy="Give a name or a file."
        )
    return further_training(source, overrides, manifest)
