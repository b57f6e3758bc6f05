"""Fine-tunes a model for a task of texts: `txl finetune`.

    txl finetune --init-from DIR --train FILE --valid FILE --workdir DIR

Texts of any length are read segment by segment with memory. The same command resumes
from the last checkpoint. Without `--init-from` a new model of `--config` is trained.
With `--predict FILE` a trained run answers the examples of a file and writes them to
`--out`; without training examples it does nothing else.
"""

import argparse
import dataclasses
import math
from typing import Any

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.task import TaskConfig
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import InputMissingError, MismatchError, UsageError
from txl_tf.imports import require_extra
from txl_tf.model_folder import Workdir, open_model, tokenizer_from
from txl_tf.tasks.answers import check_predictions_file, write_predictions
from txl_tf.tasks.examples import TASK_KINDS, TaskData
from txl_tf.tasks.metrics import compute_metrics
from txl_tf.tasks.own_data import Columns, read_own_data

from ..configs import load_experiment
from ..run.initial_weights import InitialWeights, add_initial_arguments, initial_weights
from ..run.memory_needs import require_training_memory
from ..run.run_data import RunData
from ..run.training_process import run_training
from ..run.training_settings import DEFAULT_EPOCHS, default_settings, of_length
from ..shell.arguments import (
    add_config_argument,
    add_device_arguments,
    add_number,
    add_override_argument,
    add_workdir_argument,
    overridden_settings,
    override,
    overrides_of,
)

_MAX_EPOCHS = 100_000
_SPLITS = {"train": "to train on", "valid": "to evaluate"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    run = parser.add_argument_group("run")
    add_workdir_argument(run)
    add_config_argument(run, help="train a new model: experiment or file")
    run.add_argument(
        "--vocabulary",
        metavar="DIR",
        help="data set or model whose tokenizer is used, if --init-from has none (default: bytes)",
    )
    add_number(run, "--epochs", 1, _MAX_EPOCHS, "times that every example is read (default: 3)")
    add_override_argument(run)
    _add_task_arguments(parser)
    add_initial_arguments(parser)
    add_device_arguments(parser, "train on")


def _add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the files of a task and of its predictions."""
    data = parser.add_argument_group("data")
    for split, use in _SPLITS.items():
        data.add_argument(f"--{split}", metavar="FILE", help=f"examples {use}: .jsonl, .csv, .tsv")
    data.add_argument(
        "--task",
        choices=TASK_KINDS,
        metavar="KIND",
        help=f"{' or '.join(TASK_KINDS)} (default: classification)",
    )
    data.add_argument(
        "--text-columns", metavar="NAME", nargs="+", help="columns of the texts (default: text)"
    )
    data.add_argument("--label-column", metavar="NAME", help="column of the label (default: label)")
    data.add_argument("--id-column", metavar="NAME", help="column that names the examples")
    group = parser.add_argument_group("predictions")
    group.add_argument("--predict", metavar="FILE", help="examples to answer")
    group.add_argument("--out", metavar="FILE", help="file for the answers: .jsonl")


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Checked job: examples and settings to train with, if any, and examples to predict."""

    workdir: Workdir
    arguments: argparse.Namespace
    data: TaskData | None
    experiment: ExperimentConfig | None
    initial: InitialWeights | None
    questions: TaskData | None


def check_arguments(arguments: argparse.Namespace) -> FineTuning:
    """Checks the arguments before TensorFlow is imported."""
    require_extra("finetune", "sklearn", "scipy", purpose="Fine-tuning")
    workdir = Workdir(arguments.workdir)
    workdir.check_usable()
    workdir.check_unlocked()
    earlier = workdir.describe().experiment if workdir.has_run() else None
    task = None if earlier is None else earlier.task
    if earlier is not None and task is None:
        raise MismatchError(
            "The folder has a run of language modelling, not of a task.",
            where=arguments.workdir,
            remedy="Choose a new --workdir; this folder can be its --init-from.",
        )
    if task is not None and arguments.task not in (None, task.kind):
        raise MismatchError(
            f"The run is of a task of kind {task.kind}.",
            where=f"--task {arguments.task}",
            remedy="Leave --task out, or choose a new --workdir.",
        )
    data = experiment = initial = None
    paths = {split: getattr(arguments, split) for split in _SPLITS}
    paths = {split: path for split, path in paths.items() if path is not None}
    if "train" in paths:
        data = _read_task_data(arguments, paths, task)
        experiment = _finetuning_experiment(arguments, data, earlier)
        task = experiment.task
        initial = initial_weights(arguments, workdir, experiment)
        require_training_memory(experiment, num_replicas=arguments.cpu_replicas, tpu=arguments.tpu)
    elif task is None or arguments.predict is None or paths:
        raise InputMissingError(
            "There are no examples to train on, and no run to predict with.",
            where=arguments.workdir,
            remedy="Name examples with --train, or a run with --workdir and --predict.",
        )
    assert task is not None
    questions = _examples_to_predict(arguments, task)
    return FineTuning(workdir, arguments, data, experiment, initial, questions)


def _examples_to_predict(arguments: argparse.Namespace, task: TaskConfig) -> TaskData | None:
    """Returns the examples of `--predict`, as a split `test`, after a check of `--out`."""
    if arguments.out is not None:
        if arguments.predict is None:
            raise UsageError("--out needs --predict.", where="--out", remedy="Add --predict.")
        check_predictions_file(arguments.out)
    if arguments.predict is None:
        return None
    return _read_task_data(arguments, {"test": arguments.predict}, task)


def _read_task_data(
    arguments: argparse.Namespace, paths: dict[str, str], task: TaskConfig | None
) -> TaskData:
    """Reads the files of a task, by split; an existing run decides its kind and classes."""
    names: dict[str, Any] = {
        "text": arguments.text_columns and tuple(arguments.text_columns),
        "label": arguments.label_column,
        "id": arguments.id_column,
    }
    try:
        columns = Columns(**{name: value for name, value in names.items() if value})
    except ValueError as error:
        raise UsageError(f"{error}", where="--text-columns") from error
    if task is None:
        return read_own_data(paths, arguments.task or "classification", columns)
    return read_own_data(paths, task.kind, columns, task.labels)


def _finetuning_experiment(
    arguments: argparse.Namespace, data: TaskData, earlier: ExperimentConfig | None
) -> ExperimentConfig:
    """Returns the settings of a run; an earlier one keeps its own, but for `--set` and `--epochs`.

    A new run takes the model of `--init-from` or `--config`; without either it is a UsageError.
    Steps, warm-up and periods follow from the epochs, unless `--set` names them.
    """
    overrides = overrides_of(arguments)
    if earlier is not None:
        experiment = override(earlier, overrides)
        if arguments.epochs is not None:
            num_steps = _steps_of(arguments.epochs, data, experiment)
            experiment = override(experiment, [f"training.num_steps={num_steps}"])
        return experiment
    if arguments.init_from is not None and arguments.config is not None:
        raise UsageError("--config and --init-from exclude each other.", where="--config")
    if arguments.init_from is not None:
        model = open_model(arguments.init_from, arguments.init_step).description.model
    elif arguments.config is not None:
        model = load_experiment(arguments.config, []).model
    else:
        raise UsageError(
            "A new run needs a model.",
            where="--init-from",
            remedy="Give a trained model with --init-from, or a new one with --config.",
        )
    values = default_settings(model) | {"task": _task(data).to_dict()}
    begin = override(ExperimentConfig.from_dict(values), overrides)
    num_steps = _steps_of(arguments.epochs or DEFAULT_EPOCHS, data, begin)
    if "training.num_steps" in overridden_settings(overrides):
        num_steps = begin.training.num_steps
    each_epoch = min(_steps_of(1, data, begin), num_steps)
    periods = {
        "training.evaluate_every_steps": each_epoch,
        "training.checkpoint_every_steps": each_epoch,
        "training.steps_per_loop": min(100, each_epoch),
    }
    return of_length(begin, num_steps, overrides, periods)


def _task(data: TaskData) -> TaskConfig:
    return TaskConfig(
        kind=data.kind,
        has_pairs=any(len(each.texts) > 1 for each in data.splits["train"]),
        labels=data.labels or None,
        metric=data.metrics[0],
    )


def _steps_of(num_epochs: int, data: TaskData, experiment: ExperimentConfig) -> int:
    num_rows = experiment.training.global_batch_size
    return max(math.ceil(num_epochs * len(data.splits["train"]) / num_rows), 1)


def run(job: FineTuning) -> None:
    """Trains to the end of the run, and writes the requested predictions."""
    data, experiment = job.data, job.experiment
    if data is not None and experiment is not None:

        def read_data() -> RunData:
            from ..run.fine_tuning_data import FineTuningData

            return FineTuningData(data, _tokenizer(job), experiment)

        run_training("finetune", job.arguments, job.workdir, experiment, job.initial, read_data)
    if job.questions is not None:
        _predict(job, job.questions)


def _predict(job: FineTuning, data: TaskData) -> None:
    """Predicts the examples, prints figures if they have labels, and writes the answers."""
    from txl_tf.causal_lm.text_task import load_task

    path, examples = job.arguments.out, data.splits["test"]
    predictions, scores = load_task(job.workdir.folder).answer(examples)
    if all(each.label is not None for each in examples):
        figures = compute_metrics(data.metrics, data.kind, data.labels, examples, predictions)
        listing = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        print(f"{job.arguments.predict}: {listing} ({len(examples):,} examples)")
    if path is not None:
        write_predictions(path, data, examples, predictions, scores)
        print(f"{len(examples):,} answers: {path}")


def _tokenizer(job: FineTuning) -> Tokenizer:
    """Returns the tokenizer of the run, of its source, of `--vocabulary`, or of bytes."""
    tokenizer = None
    if job.workdir.has_run():
        tokenizer = open_model(job.workdir.folder).tokenizer()
    elif job.initial is not None:
        tokenizer = job.initial.source.tokenizer()
    if tokenizer is None and job.arguments.vocabulary is not None:
        tokenizer = tokenizer_from(job.arguments.vocabulary)
    return ByteTokenizer() if tokenizer is None else tokenizer
