"""`txl verify`: checks data sets, runs, checkpoints, converted models, exports.

    txl verify PATH

The path is a prepared data set, a checkpoint, the folder of a run, a converted
model, or an exported SavedModel (its newest version). All files that other jobs
need are read, and a line is printed for each part. Exit code 65 means damage, and 78
that parts belong to different runs; the message names the file and the record or field.
"""

import argparse
import os
from collections.abc import Callable, Iterator

from txl_tf.errors import DataDamagedError, InputMissingError
from txl_tf.model_folder import (
    BASE,
    CONFIG_FILE,
    RUN_FILE,
    RunDescription,
    Workdir,
    identify_folder,
    open_model,
    read_base,
)
from txl_tf.storage.files import is_remote
from txl_tf.storage.listed_files import verify_checksums
from txl_tf.training.checkpoints.checkpoint_files import read_checkpoint
from txl_tf.training.checkpoints.checkpoint_store import CheckpointStore
from txl_tf.training.ledger import StepLedger
from txl_tf.training.metrics_log import MetricsLog

from ..shell.byte_progress import ReportBytes, byte_progress

_RESTORE = "Restore it from a copy."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="data set, checkpoint, folder of a run, converted model, or export",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks the arguments before TensorFlow is imported."""
    if not is_remote(arguments.path):
        _verification_of(arguments.path)


def run(arguments: argparse.Namespace) -> None:
    """Verifies the path, and prints a line for each part."""
    path = arguments.path.rstrip("/") or "/"
    verify = _verification_of(path)
    with byte_progress(None, "verifying") as report:
        lines = list(verify(path, report))
    for line in lines:
        print(line)


def _verification_of(path: str) -> Callable[[str, ReportBytes], Iterator[str]]:
    kind, _ = identify_folder(path)
    if kind is None:
        raise InputMissingError(
            "The path does not exist, or has nothing to verify.",
            where=path,
            remedy="Give a data set, checkpoint, run, converted model or export.",
        )
    return {
        "run": _verify_run,
        "checkpoint": _verify_checkpoint,
        "model": _verify_model,
        "export": _verify_export,
        "data set": _verify_dataset,
    }[kind]


def _verify_export(path: str, report: ReportBytes) -> Iterator[str]:
    folder = identify_folder(path)[1]
    names = verify_checksums(folder, lambda num_bytes: report("export", num_bytes))
    open_model(folder).tokenizer()
    yield f"verified: export {folder}, {len(names)} files"


def _verify_dataset(path: str, report: ReportBytes) -> Iterator[str]:
    from txl_tf.data.prepared_dataset import PreparedDataset, dataset_tokenizer

    dataset = PreparedDataset.open(path, verify=False)
    manifest = dataset.manifest
    tokenizer = dataset_tokenizer(path, manifest)
    name = os.path.basename(path)
    dataset.verify(progress=lambda num_bytes: report(name, num_bytes))
    for split in manifest.splits:
        yield f"{split.name}: {split.tokens} tokens in {len(split.shards)} shards"
    yield f"fingerprint: {manifest.fingerprint}"
    if tokenizer.vocabulary_files:
        size = tokenizer.vocabulary_size
        yield f"verified: vocabulary of {manifest.tokenizer_kind}, {size} tokens"
    yield f"verified: data set {path}"


def _verify_model(folder: str, report: ReportBytes) -> Iterator[str]:
    """Verifies a model of its own, such as one from `txl convert`."""
    source = open_model(folder)
    step, weights = source.read_weights()
    tokenizer = source.tokenizer()
    yield f"verified: configuration {folder}/{CONFIG_FILE}"
    if tokenizer is not None:
        yield f"verified: vocabulary of {tokenizer.vocabulary_size} tokens"
    yield f"verified: weights of step {step}, {len(weights)} arrays"


def _verify_checkpoint(path: str, report: ReportBytes) -> Iterator[str]:
    manifest, arrays = read_checkpoint(path)
    yield f"verified: checkpoint {path}, step {manifest['step']}, {len(arrays)} arrays"


def _verify_run(folder: str, report: ReportBytes) -> Iterator[str]:
    """Verifies all files of a run that a job reads."""
    workdir = Workdir(folder)
    if not workdir.has_run():
        what, where = "The description of the run is missing.", os.path.join(folder, RUN_FILE)
        raise DataDamagedError(what, where=where, remedy=_RESTORE)
    source, description = open_model(folder), workdir.describe()
    yield f"verified: description {folder}/{RUN_FILE}"
    try:
        tokenizer = source.tokenizer()
    except InputMissingError as error:
        raise DataDamagedError(error.what, where=error.where, remedy=error.remedy) from error
    if tokenizer is not None:
        yield f"verified: tokenizer {tokenizer.kind}, {tokenizer.vocabulary_size} tokens"
    store = description.checkpoints(folder)
    if description.experiment.training.adapter_rank is not None and store.steps():
        num_arrays = len(read_base(folder))
        yield f"verified: frozen weights {os.path.join(folder, BASE)}, {num_arrays} arrays"
    for step in store.steps():
        path, arrays = store.path(step), store.load(step)
        report(os.path.basename(path), sum(array.nbytes for array in arrays.values()))
        yield f"verified: checkpoint {path}, step {step}, {len(arrays)} arrays"
    if (best := store.best_step()) is not None:
        yield f"verified: best checkpoint {store.path(best)}"
    yield _verify_ledger(workdir, description, store)
    yield from _verify_metrics(workdir)
    yield "not covered: files for TensorBoard, which no job reads"


def _verify_ledger(workdir: Workdir, run: RunDescription, store: CheckpointStore) -> str:
    step = max(store.steps(), default=0)
    digest = store.ledger_digest(step) if step else None
    ledger = StepLedger(workdir.ledger).read(step, digest)
    if ledger is None:
        if not step:
            return "missing: ledger, as no step was done"
        raise DataDamagedError(
            "The ledger of the run is missing.", where=workdir.ledger, remedy=_RESTORE
        )
    last = ledger.last_step + len(ledger.rest)
    if not ledger.is_whole:
        raise DataDamagedError(
            f"The ledger of the run is damaged after the line of step {last}.",
            where=workdir.ledger,
            remedy=_RESTORE,
        )
    if not step and last > run.experiment.training.checkpoint_every_steps:
        raise DataDamagedError(
            f"The ledger has {last} steps, but there is no checkpoint.",
            where=workdir.checkpoints,
            remedy="Restore the checkpoints from a copy, or begin again in another --workdir.",
        )
    coverage = (
        f"no line up to step {ledger.last_step} is altered"
        if digest
        else "without a checkpoint, altered lines are not noticed"
    )
    return f"verified: ledger {workdir.ledger}, steps {ledger.first_step} to {last}; {coverage}"


def _verify_metrics(workdir: Workdir) -> Iterator[str]:
    path = workdir.metrics
    content = MetricsLog(path).read()
    if content is not None and content.num_unreadable:
        raise DataDamagedError(
            f"Number of damaged lines: {content.num_unreadable}.",
            where=path,
            remedy="Remove the damaged lines.",
        )
    if content is not None:
        yield f"verified: figures {path}, {len(content.lines)} lines, in their form only"
