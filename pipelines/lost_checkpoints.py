"""Refuses to begin a run again whose checkpoints are gone."""

import os

from pipelines.run_description import RunDescription
from pipelines.workdir import Workdir
from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.file_storage import first_line, list_folder, path_exists

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
    """The last step that the ledger can have with the checkpoints that are there.

    Lines of later steps are held back until the next checkpoint is on the disk.

    Args:
        described: `RunDescription` as it was found.
        steps: list of int. Steps of the checkpoints that are there.

    Returns:
        The step.
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
