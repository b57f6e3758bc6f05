"""Verification of a run and all its parts, and of its extension by more steps."""

import os

from txl_tf.errors import DataDamagedError, InputMissingError
from txl_tf.model_folder import BASE, open_model, read_base, weights_sha256
from txl_tf.run import RunDescription, RunStart
from txl_tf.storage.files import file_bytes, list_folder

from .checkpoint_watch import read_evaluations
from .progress import ReportBytes
from .workdir import Workdir

_RESTORE = "Restore it from a copy."


def verify_run(folder: str, report: ReportBytes) -> list[str]:
    """Verifies all files of a run; returns a line for each part that was verified or not covered.

    `report` gets the number of bytes read since the last call. Damage is a DataDamagedError, parts
    of different runs are a MismatchError.
    """
    workdir = Workdir(folder)
    try:
        run = workdir.describe()
    except InputMissingError as error:
        raise DataDamagedError(
            "The description of the run is missing.",
            where=os.path.join(folder, "run.json"),
            remedy=_RESTORE,
        ) from error
    lines = [f"verified: description {folder}/run.json"]
    lines.append(_verify_vocabulary(workdir, run))
    lines += _verify_base(workdir, run)
    lines += _verify_start(workdir, run.start)
    checkpoints = verify_checkpoints(workdir.checkpoints, run.identity(), report)
    if not checkpoints and run.first_checkpoint_step is not None:
        raise DataDamagedError(
            f"The run has had a checkpoint at step {run.first_checkpoint_step}, and has none.",
            where=workdir.checkpoints,
            remedy=_RESTORE,
        )
    lines += checkpoints
    lines.append(_verify_ledger(workdir, run.longest_checkpoint_period))
    lines += _verify_evaluations(workdir)
    lines += _verify_metrics(workdir)
    lines.append("not covered: files for TensorBoard, which no job reads")
    return lines


def _verify_start(workdir: Workdir, start: RunStart | None) -> list[str]:
    """Compares the checkpoint of step 0 with the weights that the run began from."""
    from txl_tf.training.checkpoint_store import CheckpointStore

    if start is None:
        return []
    line = f"start {start}"
    # At step 0, averages equal the weights. With another vocabulary, some rows are not the
    # source's.
    if start.vocabulary != "same" or 0 not in CheckpointStore(workdir.checkpoints, {}).steps():
        return [f"not covered: {line}; its checkpoint is not there or has other rows"]
    _, weights = open_model(workdir.folder, 0).read_weights()
    found = weights_sha256(weights)
    if found != start.sha256:
        raise DataDamagedError(
            f"The weights of step 0 have SHA-256 {found}; run.json says that the run "
            f"began from {start.sha256}.",
            where=workdir.checkpoints,
            remedy=_RESTORE,
        )
    return [f"verified: {line}"]


def _verify_base(workdir: Workdir, run: RunDescription) -> list[str]:
    if run.experiment.training.adapter_rank is None or run.first_checkpoint_step is None:
        return []
    place = os.path.join(workdir.folder, BASE)
    num_arrays = len(read_base(workdir.folder))
    return [f"verified: frozen weights {place}, {num_arrays} arrays"]


def verify_model(folder: str, report: ReportBytes) -> list[str]:
    """Verifies a model of its own, such as one from `txl convert`, as `verify_run` does."""
    source = open_model(folder)
    step, weights = source.read_weights()
    report("model", sum(array.nbytes for array in weights.values()))
    tokenizer = source.tokenizer()
    lines = [f"verified: configuration {folder}/config.json"]
    if tokenizer is not None:
        lines.append(f"verified: vocabulary of {tokenizer.vocabulary_size} tokens")
    return [*lines, f"verified: weights of step {step}, {len(weights)} arrays"]


def verify_checkpoints(folder: str, run_identity: dict | None, report: ReportBytes) -> list[str]:
    """Verifies all checkpoints of a folder and the note of the best one, as `verify_run` does.

    Without a `run_identity`, they are only compared with each other.
    """
    from txl_tf.training.checkpoint_format import verified_manifest
    from txl_tf.training.checkpoint_store import CheckpointStore

    lines = []
    for step in CheckpointStore(folder, {}).steps():
        path = os.path.join(folder, f"step-{step:08d}")
        if run_identity is None:
            run_identity = verified_manifest(path)["identity"]
        arrays = CheckpointStore(folder, run_identity).load(step)
        num_bytes = sum(file_bytes(os.path.join(path, name)) for name in list_folder(path))
        report(os.path.basename(path), num_bytes)
        lines.append(f"verified: checkpoint {path}, step {step}, {len(arrays)} arrays")
    best = CheckpointStore(folder, {}).best_step()
    if best is not None:
        lines.append(f"verified: best checkpoint {folder}/best.json, step {best}")
    return lines


def _verify_vocabulary(workdir: Workdir, run: RunDescription) -> str:
    from txl_tf.data.tokenizers import TOKENIZERS

    kind, vocabulary = run.data["tokenizer"], os.path.join(workdir.folder, "vocabulary")
    if kind not in (tokenizer.kind for tokenizer in TOKENIZERS):
        return f"not covered: the tokenizer {ascii(kind)[:40]}, which is not one of this program"
    tokenizer = open_model(workdir.folder).tokenizer()
    assert tokenizer is not None
    if tokenizer.vocabulary_size != run.data["vocabulary_size"]:
        raise DataDamagedError(
            f"The vocabulary has {tokenizer.vocabulary_size} tokens; `data.vocabulary_size` of "
            f"run.json says {run.data['vocabulary_size']}.",
            where=vocabulary,
            remedy=_RESTORE,
        )
    if not tokenizer.vocabulary_files:
        return f"verified: tokenizer {kind}, which has no files"
    return f"verified: vocabulary {vocabulary}, {tokenizer.vocabulary_size} tokens"


def _verify_ledger(workdir: Workdir, checkpoint_period: int) -> str:
    from txl_tf.training.checkpoint_format import verified_manifest
    from txl_tf.training.checkpoint_store import CheckpointStore
    from txl_tf.training.ledger import StepLedger

    steps = CheckpointStore(workdir.checkpoints, {}).steps()
    paths = {step: os.path.join(workdir.checkpoints, f"step-{step:08d}") for step in steps}
    digests = {step: verified_manifest(path).get("ledger") for step, path in paths.items()}
    ledger = StepLedger(workdir.ledger).read(digests)
    if ledger is None:
        if not steps:
            return "not there: ledger, for no step was done"
        what = "The ledger of the run is missing."
        raise DataDamagedError(what, where=workdir.ledger, remedy=_RESTORE)
    last = ledger.last_step + len(ledger.rest)
    if not ledger.is_whole:
        what = f"The ledger of the run is damaged after the line of step {last}."
        raise DataDamagedError(what, where=workdir.ledger, remedy=_RESTORE)
    if not steps and last > checkpoint_period:
        raise DataDamagedError(
            f"The ledger has {last} steps, but there is no checkpoint.",
            where=workdir.checkpoints,
            remedy="Restore the checkpoints from a copy, or begin anew in another --workdir.",
        )
    covered = (
        f"altered lines are found up to step {ledger.last_step}"
        if any(digests.values())
        else "no checkpoint binds it"
    )
    return f"verified: ledger {workdir.ledger}, steps {ledger.first_step} to {last}; {covered}"


def _verify_evaluations(workdir: Workdir) -> list[str]:
    lines = []
    for split, path, results in read_evaluations(workdir.evaluations):
        splits = (line["result"].get("split") for line in results)
        found = next((name for name in splits if name != split), split)
        if found != split:
            what = f"A result is of the split {ascii(found)[:40]}."
            raise DataDamagedError(what, where=path, remedy=_RESTORE)
        lines.append(f"verified: evaluations {path}, {len(results)} results")
    return lines


def _verify_metrics(workdir: Workdir) -> list[str]:
    from txl_tf.training.metrics import MetricsLog

    lines = []
    for name, path in (("metrics", workdir.metrics), ("time", workdir.time)):
        found = MetricsLog(path).read()
        if found is None:
            continue
        if found.num_unreadable:
            what = f"{found.num_unreadable} lines of the {name} are not what was written."
            raise DataDamagedError(what, where=path, remedy="Remove them or the file.")
        lines.append(f"verified: {name} {path}, {len(found.lines)} lines, by their form")
    return lines
