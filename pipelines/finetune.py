"""Fine-tunes a model for a task of texts: `txl finetune`.

    txl finetune --init-from DIR --train FILE --valid FILE --workdir DIR

Texts of any length are read segment by segment with memory. The same command resumes
from the last checkpoint. Without `--init-from` a new model of `--config` is trained.
With `--predict FILE` a trained run answers the examples of a file and writes them to
`--out`; without training examples it does nothing else.
"""

import argparse
import os
from typing import TYPE_CHECKING

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.manifest import MANIFEST_FILE
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import InputMissingError, MismatchError, UsageError
from txl_tf.imports import require_extra
from txl_tf.run_folder import kind
from txl_tf.storage.files import path_exists
from txl_tf.tasks.examples import TaskData

from .arguments import add_config_argument, add_device_arguments, add_number, add_override_argument
from .finetuning_settings import MAX_EPOCHS, finetuning_experiment
from .initial_weights import add_initial_arguments, initial_weights
from .memory_needs import require_training_memory
from .task_arguments import add_task_arguments, has_task_files, read_task_data
from .task_predictions import add_prediction_arguments, check_prediction_arguments, predict
from .train import RunOptions, run_training
from .workdir import Workdir, add_workdir_argument

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.tokenizer import Tokenizer
    from txl_tf.training.run_time import RunClock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    run = parser.add_argument_group("run")
    add_workdir_argument(run)
    add_config_argument(run, help="a new model: experiment or file")
    run.add_argument(
        "--vocabulary",
        metavar="DIR",
        help="data set or any model with the tokenizer",
    )
    meaning = "times that every example is read (default: 3)"
    add_number(run, "--epochs", 1, MAX_EPOCHS, meaning)
    add_override_argument(run)
    add_task_arguments(parser)
    add_prediction_arguments(parser)
    add_initial_arguments(parser)
    add_device_arguments(parser, "train on")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    require_extra("finetune", "sklearn", "scipy", purpose="Fine-tuning")
    workdir = Workdir(arguments.workdir)
    workdir.check_usable()
    begun = workdir.read()[0] if workdir.has_run() else None
    if begun is not None and begun.task is None:
        raise MismatchError(
            "A run of language modelling was begun here.",
            where=arguments.workdir,
            remedy="Give it as --init-from, and choose a new --workdir.",
        )
    check_prediction_arguments(arguments, begun)
    arguments.task_data = None
    if not has_task_files(arguments):
        if arguments.predict is None:
            raise UsageError(
                "There is nothing to do.", where="--train", remedy="Name examples to train on."
            )
        return
    labels = None if begun is None or begun.task is None else begun.task.labels
    arguments.task_data = data = read_task_data(arguments, labels)
    if "train" not in data.splits:
        raise InputMissingError(
            "There are no examples to train on.", where="--train", remedy="Name their file."
        )
    arguments.experiment = finetuning_experiment(arguments, data, begun)
    arguments.initial = initial_weights(arguments, workdir, arguments.experiment)
    require_training_memory(
        arguments.experiment, num_replicas=arguments.cpu_replicas, tpu=arguments.tpu
    )


def run(arguments: argparse.Namespace) -> None:
    """Trains to the end of the run, and writes the requested predictions."""
    from txl_tf.training.run_time import RunClock

    clock = RunClock()
    if arguments.task_data is not None:
        with PreemptionWatcher() as watcher:
            _train(arguments, arguments.task_data, watcher, clock)
    if arguments.predict is not None:
        predict(arguments)


def _train(
    arguments: argparse.Namespace, data: TaskData, watcher: PreemptionWatcher, clock: "RunClock"
) -> None:
    # The CPU must be split before TensorFlow's first operation.
    from txl_tf.distribution.strategy import create_strategy

    strategy = create_strategy(arguments.tpu, arguments.cpu_replicas)
    from .task_run_data import FineTuningData

    workdir, experiment = Workdir(arguments.workdir), arguments.experiment
    tokenizer = _tokenizer(arguments, workdir, experiment)
    run_data = FineTuningData(data, tokenizer, experiment)
    options = RunOptions(watcher=watcher, initial=arguments.initial, clock=clock)
    run_training(experiment, run_data, workdir, strategy, **options)
    print(workdir.tensorboard_line)


def _tokenizer(
    arguments: argparse.Namespace, workdir: Workdir, experiment: ExperimentConfig
) -> "Tokenizer":
    """Returns the tokenizer of the run, of its source, of `--vocabulary`, or of bytes."""
    from txl_tf.causal_lm.model_folder import run_tokenizer
    from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer

    if workdir.has_run():
        return run_tokenizer(workdir.folder, workdir.read()[1])
    found = None
    if arguments.initial is not None:
        found = arguments.initial.source.tokenizer()
    if found is None and arguments.vocabulary is not None:
        found = given_tokenizer(arguments.vocabulary)
    if found is not None:
        return found
    if experiment.model.vocabulary_size != ByteTokenizer.vocabulary_size:
        raise UsageError(
            f"The model has {experiment.model.vocabulary_size} tokens and no tokenizer.",
            where="--vocabulary",
            remedy="Name the prepared data set of its training.",
        )
    return ByteTokenizer()


def given_tokenizer(folder: str) -> "Tokenizer":
    """Returns the tokenizer of a data set or a model; InputMissingError if it has none."""
    from txl_tf.causal_lm.model_folder import tokenizer_from
    from txl_tf.causal_lm.model_source import open_model

    if kind(folder) is None and path_exists(os.path.join(folder, MANIFEST_FILE)):
        return tokenizer_from(folder)
    try:
        found = open_model(folder).tokenizer()
    except InputMissingError:
        found = None
    if found is None:
        raise InputMissingError(
            "The folder has no vocabulary.",
            where=f"--vocabulary {folder}",
            remedy="Name a data set, a run, a checkpoint in it, an export, or a model that was "
            "converted with --data.",
        )
    return found
