"""Folder of the checkpoints of a run."""

import contextlib
import json
import os
import re
import shutil
import threading
import uuid
from typing import Any

import numpy as np

from txl_tf.config.differences import describe_differences
from txl_tf.errors import DataDamagedError, MismatchError, StorageError, first_line, storage_errors
from txl_tf.storage.files import path_exists
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.checkpoints.checkpoint_files import (
    DATA_FILE,
    MANIFEST_FILE,
    REMEDY,
    read_checkpoint,
    read_manifest,
    require_finite,
    sealed,
    unsealed,
    write_checkpoint,
)

_BEST_FILE = "best.json"
_UNFINISHED_FILE = "unfinished"
# At least eight digits, and no superfluous zeros, so that a step has one name.
_FOLDER = re.compile(r"step-(\d{8}|[1-9]\d{8,})")
_TEMPORARY = re.compile(r"\.step-.*\.tmp")
_BEST_REMEDY = "Restore the file from a copy, or remove it; the next best step writes it anew."


def step_of_folder(name: str) -> int | None:
    """Returns the step in the name of a checkpoint's folder; `None` for other names."""
    match = _FOLDER.fullmatch(name)
    return None if match is None else int(match[1])


def _name(step: int) -> str:
    return f"step-{step:08d}"


class CheckpointStore:
    """Folder of the checkpoints of a run; the `num_kept` newest and the best one are kept.

    A checkpoint of another `identity`, the settings that decide a step, is refused. If the newest
    checkpoint is damaged, the one before it is loaded. One process writes at a time, in its
    `locked_folder`; any number of processes may read.

    A process may be killed at any moment, so each folder is in one of these states:

    - `.step-*.tmp`: a checkpoint that is being written, or on a disk being removed. A leftover.
    - `step-NNNNNNNN` with a manifest: a checkpoint, which reading verifies.
    - `step-NNNNNNNN` in a store without a manifest, but with the file `unfinished` or without
      arrays: a checkpoint that is being moved to its place or removed. A leftover.
    - `step-NNNNNNNN` otherwise: a damaged checkpoint, whose manifest is lost.

    On a disk a folder is renamed in one piece. An object store renames file by file, which is why
    `_commit` and `_remove` write `unfinished` first there. `_is_unfinished` tells the states apart.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | WritableFolder,
        identity: dict[str, Any],
        num_kept: int = 3,
    ) -> None:
        self._folder = WritableFolder.at(folder)
        self._identity = json.loads(json.dumps(identity))
        self._num_kept = num_kept
        self._best_path = os.path.join(self._folder.path, _BEST_FILE)
        # A save in the background and a call of the main thread must not remove each other's files.
        self._writing = threading.RLock()

    def path(self, step: int) -> str:
        """Returns the path of the checkpoint of a step."""
        return os.path.join(self._folder.path, _name(step))

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, oldest first."""
        return [step for step in self._all_steps() if not self._is_unfinished(step)]

    def load_latest(self) -> tuple[int, dict[str, np.ndarray], list[str]] | None:
        """Reads the newest valid checkpoint.

        Returns the step, the arrays, and a line for every newer, damaged checkpoint; `None` if
        there are no checkpoints. Raises DataDamagedError if all are damaged, and MismatchError for
        a checkpoint of another run or another format.
        """
        complaints: list[str] = []
        for step in reversed(self.steps()):
            try:
                return step, self.load(step), complaints
            except DataDamagedError as error:
                complaints.append(f"{error.where}: {error.what}")
        if complaints:
            raise DataDamagedError(
                f"All checkpoints are damaged ({len(complaints)}); the newest: {complaints[0]}",
                where=self._folder.path,
                remedy="Restore the folder from a copy, or choose a new --workdir.",
            )
        return None

    def load(self, step: int) -> dict[str, np.ndarray]:
        """Reads the arrays of one checkpoint.

        Raises the errors of `read_checkpoint`, and MismatchError for a checkpoint of another run.
        """
        manifest, arrays = read_checkpoint(self.path(step))
        self._check_owner(step, manifest)
        return arrays

    def ledger_digest(self, step: int) -> dict[str, Any] | None:
        """Returns the `StepLedger.digest` that was saved with a checkpoint, if any."""
        manifest = read_manifest(self.path(step))
        self._check_owner(step, manifest)
        return manifest.get("ledger")

    def _check_owner(self, step: int, manifest: dict[str, Any]) -> None:
        if manifest["step"] != step:
            raise DataDamagedError(
                f"the checkpoint is of step {manifest['step']}, not {step} as its folder says",
                where=self.path(step),
                remedy=REMEDY,
            )
        differences = describe_differences(manifest["identity"], self._identity)
        if differences:
            raise MismatchError(
                f"The checkpoint was made with other settings; {differences}",
                where=self.path(step),
                remedy="Give the stored settings, or choose a new --workdir.",
            )

    def save(
        self, step: int, arrays: dict[str, np.ndarray], ledger: dict[str, Any] | None = None
    ) -> str:
        """Saves a checkpoint, removes old ones, and returns the path.

        Raises NonFiniteError if an array is not finite, OutputExistsError if this process may no
        longer write, and StorageError if writing fails.
        """
        require_finite(step, arrays)
        hidden = f".{_name(step)}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp"
        with self._writing:
            best = self._read_best()
            try:
                self._remove_leftovers()
                folder = self._folder.subfolder(hidden)
                folder.make()
                manifest = write_checkpoint(folder.path, step, arrays, self._identity, ledger)
                self._commit(step, folder, manifest)
                self._remove_old(step, best)
            except OSError as error:
                # If this process may no longer write, raise that error instead.
                self._folder.check()
                # The next save removes leftovers.
                with contextlib.suppress(OSError):
                    self._folder.remove_folder(hidden)
                    if self._is_unfinished(step):
                        self._remove(step)
                num_bytes = sum(np.asarray(array).nbytes for array in arrays.values())
                raise self._writing_failed(step, num_bytes, error) from error
        return self.path(step)

    def keep_best(self, step: int) -> None:
        """Keeps a checkpoint until another is the best."""
        with (
            self._writing,
            storage_errors(
                "The number of the best checkpoint cannot be written",
                self._best_path,
                "Make room or check the permissions.",
            ),
        ):
            self._folder.write(_BEST_FILE, sealed({"step": step}))

    def best_step(self, until: int | None = None) -> int | None:
        """Returns the step of the last `keep_best`; `None` before the first.

        Raises DataDamagedError if the checkpoint of that step is missing. It may only be missing if
        its step is after `until`: a run that continues from `until` saves it again.
        """
        step = self._read_best()
        if step is None or (until is not None and step > until) or step in self.steps():
            return step
        raise DataDamagedError(
            "the best checkpoint is missing",
            where=self.path(step),
            remedy=f"Restore the folder from a copy, or remove {_BEST_FILE} to go on without it.",
        )

    def remove_leftovers(self) -> list[str]:
        """Removes leftovers of killed processes, and returns their paths.

        Only the process that writes may call it.
        """
        with (
            storage_errors(
                "The unfinished files of a killed process cannot be removed", self._folder.path
            ),
            self._writing,
        ):
            return self._remove_leftovers()

    def _commit(self, step: int, folder: WritableFolder, manifest: bytes) -> None:
        """Turns a hidden folder with arrays into a checkpoint, which then survives the machine."""
        hidden, name = os.path.basename(folder.path), _name(step)
        if self._folder.subfolder(name).names():  # a damaged one
            self._remove(step)
        if not self._folder.is_remote:
            folder.write(MANIFEST_FILE, manifest)
            self._folder.flush_tree(hidden)
            self._folder.rename(hidden, name)
            return
        target = self._folder.subfolder(name)
        target.write(_UNFINISHED_FILE, b"")
        # The file is renamed by its name, because a listing may be outdated.
        self._folder.rename(os.path.join(hidden, DATA_FILE), os.path.join(name, DATA_FILE))
        target.write(MANIFEST_FILE, manifest)
        target.remove_file(_UNFINISHED_FILE)
        self._folder.remove_folder(hidden)

    def _remove(self, step: int) -> None:
        """Removes a checkpoint; a kill meanwhile leaves a checkpoint or a leftover."""
        name = _name(step)
        if not self._folder.is_remote:
            trash_name = f".{name}.removed.tmp"
            self._folder.rename(name, trash_name)
            self._folder.remove_folder(trash_name)
            return
        folder = self._folder.subfolder(name)
        folder.write(_UNFINISHED_FILE, b"")
        for file in (MANIFEST_FILE, DATA_FILE):
            folder.remove_file(file)
        self._folder.remove_folder(name)

    def _all_steps(self) -> list[int]:
        steps = map(step_of_folder, self._folder.names())
        return sorted(step for step in steps if step is not None)

    def _is_unfinished(self, step: int) -> bool:
        """True for a folder in a store that is a leftover, see `CheckpointStore`."""
        if not self._folder.is_remote:
            return False
        names = self._folder.subfolder(_name(step)).names()
        if MANIFEST_FILE in names or (DATA_FILE in names and _UNFINISHED_FILE not in names):
            return False
        # A listing may be outdated; a lookup of the file itself is not.
        return not path_exists(os.path.join(self.path(step), MANIFEST_FILE))

    def _remove_leftovers(self) -> list[str]:
        names = [name for name in self._folder.names() if _TEMPORARY.fullmatch(name)]
        for name in names:
            self._folder.remove_folder(name)
        steps = [step for step in self._all_steps() if self._is_unfinished(step)]
        for step in steps:
            self._remove(step)
        leftovers = [*names, *map(_name, steps)]
        paths = [os.path.join(self._folder.path, name) for name in leftovers]
        return paths + self._folder.remove_temporaries()

    def _remove_old(self, step: int, best: int | None) -> None:
        # Later checkpoints do not count: they are damaged, or the run would have resumed from them.
        steps = [each for each in self.steps() if each <= step]
        for old_step in steps[: -self._num_kept]:
            if old_step != best:
                self._remove(old_step)

    def _read_best(self) -> int | None:
        what = "The number of the best checkpoint cannot be read"
        absence = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with storage_errors(what, self._best_path), absence:
            return unsealed(self._best_path, _BEST_REMEDY)["step"]
        return None

    def _writing_failed(self, step: int, num_bytes: int, error: Exception) -> StorageError:
        need = f"it needs {num_bytes:,} bytes"
        with contextlib.suppress(OSError):  # raised for an object store or a missing folder
            need += f", {shutil.disk_usage(self._folder.path).free:,} are free"
        return StorageError(
            f"The checkpoint of step {step} cannot be written: {first_line(error)}; {need}.",
            where=self.path(step),
            remedy="Make room or choose another --workdir; the older checkpoints are intact.",
        )
