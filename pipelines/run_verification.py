"""Verification of a run: description, vocabulary, ledger, checkpoints, evaluations."""

import os

from pipelines.evaluation.evaluation_log import read_evaluation_lines
from pipelines.progress import ReportBytes
from pipelines.trained_model import tokenizer_of
from pipelines.workdir import Workdir
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError
from txl_tf.run_description import RunDescription, identity
from txl_tf.run_folder import converted_config, converted_identity
from txl_tf.storage.files import file_bytes, first_line, list_folder, path_exists

_RESTORE = "Restore it from a copy."


def verify_run(folder: str, report: ReportBytes) -> list[str]:
    """Verifies all that another job relies on.

    That is its description, the vocabulary, every checkpoint, the note of the
    best one, the ledger and the results of evaluations.

    Args:
        folder: str. Folder of the run.
        report: function, told of the bytes that are done.

    Returns:
        A line for each thing that was verified, or could not be.

    Raises:
        DataDamagedError: If one of them is not what was written.
        MismatchError: If they are not of one run.
        StorageError: If a file cannot be read.
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
    lines.append(_verify_vocabulary(workdir, run.data))
    run_identity = identity(run.experiment, run.data)
    checkpoints = verify_checkpoints(workdir.checkpoints, run_identity, report)
    if not checkpoints and run.first_checkpoint_step is not None:
        raise DataDamagedError(
            f"The run has had a checkpoint at step {run.first_checkpoint_step}, and has none.",
            where=workdir.checkpoints,
            remedy=_RESTORE,
        )
    lines += checkpoints
    lines.append(_verify_ledger(workdir, run.longest_checkpoint_period))
    lines += _verify_evaluations(workdir)
    lines.append("not covered: files for TensorBoard, which no job reads")
    return lines


def verify_converted(folder: str, report: ReportBytes) -> list[str]:
    """Verifies a model that `txl convert` has brought in.

    Args:
        folder: str. The folder.
        report: function, told of the bytes that are done.

    Returns:
        A line for each thing that was verified.

    Raises:
        DataDamagedError: If one of them is not what was written.
        MismatchError: If configuration and weights are not of one model.
        StorageError: If a file cannot be read.
    """
    config = converted_config(folder)
    checkpoints = Workdir(folder).checkpoints
    lines = verify_checkpoints(checkpoints, converted_identity(config), report)
    if not lines:
        raise DataDamagedError("The weights are missing.", where=checkpoints, remedy=_RESTORE)
    # The checkpoint keeps the configuration that it is of, and both were compared.
    return [f"verified: configuration {folder}/config.json", *lines]


def verify_checkpoints(folder: str, run_identity: dict | None, report: ReportBytes) -> list[str]:
    """Verifies all checkpoints of a folder, and which one is the best.

    Args:
        folder: str. Folder of the checkpoints.
        run_identity: optional dict. What the checkpoints must be of; if `None`,
            they are only compared with each other.
        report: function, told of the bytes that are done.

    Returns:
        A line for each thing that was verified; none where there is nothing.

    Raises:
        DataDamagedError: If one of them is not what was written.
        MismatchError: If they are not of one run.
        StorageError: If a file cannot be read.
    """
    from txl_tf.training.checkpoint_format import verified_manifest
    from txl_tf.training.checkpoint_store import CheckpointStore

    lines = []
    for step in CheckpointStore(folder, {}).steps():
        path = os.path.join(folder, f"step-{step:08d}")
        if run_identity is None:
            run_identity = verified_manifest(path)["identity"]
        arrays = CheckpointStore(folder, run_identity).load(step)
        report(os.path.basename(path), sum(_sizes_in(path)))
        lines.append(f"verified: checkpoint {path}, step {step}, {len(arrays)} arrays")
    best = CheckpointStore(folder, {}).best_step()
    if best is not None:
        lines.append(f"verified: best checkpoint {folder}/best.json, step {best}")
    return lines


def _sizes_in(folder: str) -> list[int]:
    return [file_bytes(os.path.join(folder, name)) for name in list_folder(folder)]


def _verify_vocabulary(workdir: Workdir, data: dict) -> str:
    from txl_tf.data.tokenizers import TOKENIZERS

    kind = data["tokenizer"]
    if kind not in (tokenizer.kind for tokenizer in TOKENIZERS):
        return f"not covered: the tokenizer {ascii(kind)[:40]}, which is not one of this program"
    try:
        tokenizer = tokenizer_of(workdir, data)
    except InputMissingError as error:
        raise DataDamagedError(error.what, where=error.where, remedy=error.remedy) from error
    if tokenizer.vocabulary_size != data["vocabulary_size"]:
        raise DataDamagedError(
            f"The vocabulary has {tokenizer.vocabulary_size} tokens; `data.vocabulary_size` of "
            f"run.json says {data['vocabulary_size']}.",
            where=workdir.vocabulary,
            remedy=_RESTORE,
        )
    if not tokenizer.vocabulary_files:
        return f"verified: tokenizer {kind}, which has no files"
    return f"verified: vocabulary {workdir.vocabulary}, {tokenizer.vocabulary_size} tokens"


def _verify_ledger(workdir: Workdir, checkpoint_period: int) -> str:
    from txl_tf.training.checkpoint_format import verified_manifest
    from txl_tf.training.checkpoint_store import CheckpointStore
    from txl_tf.training.ledger import StepLedger

    steps = CheckpointStore(workdir.checkpoints, {}).steps()
    try:
        reader = StepLedger(workdir.ledger).reader()
        if reader is None:
            if steps:
                raise DataDamagedError(
                    "The ledger of the run is missing.", where=workdir.ledger, remedy=_RESTORE
                )
            return "not there: ledger, for no step was done"
        num_bound = 0
        for step in steps:
            reader.read_until(step)
            path = os.path.join(workdir.checkpoints, f"step-{step:08d}")
            digest = verified_manifest(path).get("ledger")
            reader.check(digest)
            num_bound += digest is not None
        bound = reader.last_step
        rest, is_whole = reader.read_rest()
    except OSError as error:
        raise StorageError(
            f"The ledger of the run cannot be read: {first_line(error)}",
            where=workdir.ledger,
            remedy="Check the storage and the permissions.",
        ) from error
    if not is_whole:
        raise reader.damaged("what follows the last line that can be read is none")
    last = bound + len(rest)
    if not steps and last > checkpoint_period:
        raise DataDamagedError(
            f"The ledger has {last} steps, but there is no checkpoint.",
            where=workdir.checkpoints,
            remedy="Restore the checkpoints from a copy, or begin anew in another --workdir.",
        )
    covered = (
        f"altered lines are found up to step {bound}" if num_bound else "no checkpoint binds it"
    )
    return f"verified: ledger {workdir.ledger}, steps {reader.first_step} to {last}; {covered}"


def _verify_evaluations(workdir: Workdir) -> list[str]:
    lines = []
    path = workdir.evaluations
    try:
        for split in list_folder(workdir.evaluations):
            path = os.path.join(workdir.evaluations, split, "results.jsonl")
            if not path_exists(path):
                continue
            results = read_evaluation_lines(path)
            wrong = [line for line in results if line["result"].get("split") != split]
            if wrong:
                raise DataDamagedError(
                    f"A result is of the split {ascii(wrong[0]['result'].get('split'))[:40]}.",
                    where=path,
                    remedy=_RESTORE,
                )
            lines.append(f"verified: evaluations {path}, {len(results)} results")
    except OSError as error:
        what = f"The evaluations cannot be read: {first_line(error)}"
        raise StorageError(what, where=path, remedy="Check the storage.") from error
    return lines


_ANEW = (
    "Restore them from a copy. To begin anew on purpose, remove the folder or name a new --workdir."
)


def require_checkpoints(workdir: Workdir, described: RunDescription, steps: list[int]) -> None:
    """Checks that a run that has had checkpoints still has one.

    A run that was killed before its first checkpoint has none, and begins at
    step 0. What the ledger says is held against the checkpoints by
    `StepLedger.resume`.

    Args:
        workdir: `Workdir`.
        described: `RunDescription` as it was found.
        steps: list of int. Steps of the checkpoints that are there.

    Raises:
        DataDamagedError: If checkpoints are missing.
        StorageError: If the storage does not answer.
    """
    if steps:
        return
    try:
        evidence = _evidence(workdir, described)
    except OSError as error:
        raise StorageError(
            f"It cannot be seen whether the run has had checkpoints: {first_line(error)}",
            where=workdir.folder,
            remedy="Start again when the storage answers.",
        ) from error
    if evidence is not None:
        raise DataDamagedError(
            f"The checkpoints of the run are missing: {evidence}.",
            where=workdir.checkpoints,
            remedy=_ANEW,
        )


def latest_explained_step(described: RunDescription, steps: list[int]) -> int:
    """Returns the last ledger step that the existing checkpoints allow.

    Lines of later steps are held back until the next checkpoint is on the disk.

    Args:
        described: `RunDescription` as it was found.
        steps: list of int. Steps of the checkpoints that are there.
    """
    return max(steps, default=0) + described.longest_checkpoint_period


def _evidence(workdir: Workdir, described: RunDescription) -> str | None:
    if described.first_checkpoint_step is not None:
        return f"there was one of step {described.first_checkpoint_step}"
    if path_exists(workdir.best_checkpoint):
        return "best.json names one"
    if _has_evaluations(workdir.evaluations):
        return "there are evaluations of some"
    return None


def _has_evaluations(folder: str) -> bool:
    """Whether there is a file of results, of whatever split."""
    names = [name for name in list_folder(folder) if not name.startswith(".")]
    return any(path_exists(os.path.join(folder, name, "results.jsonl")) for name in names)
