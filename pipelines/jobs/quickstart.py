"""Preparation, training, evaluation and export of a small model: `txl quickstart`.

    txl quickstart

Prepares the source of the Python standard library, trains a small model on its
bytes, evaluates it, writes a sample and exports a SavedModel. Killed at any
moment, the same command resumes from the last checkpoint and gives the same
figures.
"""

import argparse
import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.standard_library import python_standard_library_splits
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import PreemptedError, UsageError
from txl_tf.model_folder import ModelDescription, Workdir, build_model

from ..configs import NAMED_EXPERIMENTS
from ..run.memory_needs import require_training_memory
from ..shell.arguments import add_override_argument, override
from ..shell.progress import say, show_progress

if TYPE_CHECKING:
    from txl_tf.models.transformer_xl import TransformerXL

_PROMPT = """# file: example.py
import os
import sys


class Example:
    def __init__(self, name, value=None):
        self.name = name
        self.value = value

    def """
_SAMPLE_TOKENS = 400
# A sample ends after a class, or in a run of spaces that a small model cannot leave.
_SAMPLE_ENDS = ("\n\n\n", 40 * " ")
_NUM_SAMPLES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        default="runs/quickstart",
        help="folder of the run (default: runs/quickstart)",
    )
    add_override_argument(parser)


@dataclasses.dataclass(frozen=True)
class Quickstart:
    """Checked arguments of the job; the training run is beside data and export."""

    folder: Path
    workdir: Workdir
    experiment: ExperimentConfig


def check_arguments(arguments: argparse.Namespace) -> Quickstart:
    """Checks the arguments before TensorFlow is imported."""
    experiment = override(NAMED_EXPERIMENTS["quickstart"](), arguments.overrides)
    workdir = Workdir(os.path.join(arguments.workdir, "run"))
    workdir.check_usable()
    require_training_memory(experiment)
    if experiment.model.vocabulary_size != 256:
        what, where = "The quickstart reads bytes: the vocabulary must be 256.", "--set"
        raise UsageError(what, where=where, remedy="Leave model.vocabulary_size out.")
    return Quickstart(Path(arguments.workdir), workdir, experiment)


def run(job: Quickstart) -> None:
    """Runs all jobs one after the other."""
    import tensorflow as tf

    from txl_tf.evaluation.result import result_table
    from txl_tf.evaluation.scores import evaluate_split

    from ..run.training_data import TrainingData
    from ..run.training_job import TrainingJob
    from ..run.training_run import train

    begin = time.perf_counter()
    folder, workdir, experiment = job.folder, job.workdir, job.experiment

    say("1/5 prepare: the source of the Python standard library, as bytes")
    _prepare(folder / "data")

    say("2/5 train")
    with PreemptionWatcher() as watcher:
        training_run = train(
            TrainingJob(
                experiment=experiment,
                data=TrainingData(str(folder / "data"), experiment),
                workdir=workdir,
                strategy=tf.distribute.get_strategy(),
                watcher=watcher,
            )
        )
    if watcher.requested is not None:
        raise PreemptedError(
            f"Stopped after training: {watcher.requested}.",
            where=str(folder),
            remedy="Run the same command to resume.",
        )
    step = training_run.trainer.step
    dataset = PreparedDataset.open(str(folder / "data"), verify=False)
    model = build_model(experiment.model, training_run.trainer.state.inference_weights())

    say("3/5 evaluate")
    # Reuses the run's evaluator, which is compiled already.
    evaluator = training_run.ready_evaluator()
    results = [] if training_run.result is None else [training_run.result]
    results += [
        evaluate_split(evaluator, dataset, split, step=step, track=show_progress)
        for split in ("valid", "test")[len(results) :]
    ]

    say("4/5 generate")
    sample = _sample(model)

    say("5/5 export")
    export_folder = folder / "export" / str(step)
    if not export_folder.exists():
        _export(workdir, model, step, export_folder)

    say("")
    print(result_table(results))
    print(f"sample:\n{sample}\n")
    print(f"SavedModel: {export_folder}")
    print(workdir.tensorboard_line)
    print(f"serve: txl serve --workdir {workdir.folder}")
    print(f"done in {time.perf_counter() - begin:.0f} seconds")


def _prepare(folder: Path) -> None:
    if folder.exists():
        return
    manifest = prepare_dataset(
        python_standard_library_splits(), ByteTokenizer(), str(folder), "python_standard_library"
    )
    for split in manifest.splits:
        say(f"{split.name}: {split.bytes:,} bytes, {split.documents} files")


def _sample(model: "TransformerXL") -> str:
    from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM

    lm = TransformerXLCausalLM(model, ByteTokenizer())
    options: dict[str, Any] = {
        "max_tokens": _SAMPLE_TOKENS,
        "temperature": 0.8,
        "seed": 0,
        "stop": _SAMPLE_ENDS,
    }
    return max(lm.generate(_PROMPT, num_samples=_NUM_SAMPLES, **options), key=len).rstrip()


def _export(workdir: Workdir, model: "TransformerXL", step: int, folder: Path) -> None:
    from txl_tf.export import export_saved_model

    description = dataclasses.replace(ModelDescription.of_run(workdir.describe()), step=step)
    export_saved_model(model, folder, tokenizer=ByteTokenizer(), description=description)
