"""Store of complete and verified checkpoints, and saving in the background."""

import contextlib
import json
import os
import queue
import shutil
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.config.base import describe_differences
from txl_tf.errors import DataDamagedError, MismatchError, OutputExistsError, StorageError
from txl_tf.storage.files import first_line
from txl_tf.storage.untrusted_files import read_json_object
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.checkpoint_folders import CheckpointFolders
from txl_tf.training.checkpoint_format import (
    ARRAYS_PREFIX,
    checksum,
    damaged,
    describe_arrays,
    manifest_text,
    read_arrays,
    stored_run_id,
    verified_manifest,
    write_arrays,
)

_BEST_FILE = "best.json"
_BEST_REMEDY = "Restore it from a copy, or remove it: the next best one writes it anew."


class CheckpointStore:
    """Folder of checkpoints, one subfolder `step-NNNNNNNN` each.

    A manifest has checksums of everything, itself included, and the identity of the run: the
    settings that decide a step. Reading verifies both. A checkpoint of another identity is
    refused, and a damaged one makes way for the one before it. The `num_kept` newest checkpoints
    and the best one are kept; one of another `run_id` is never removed. One process writes at a
    time, with the folder of its `DirectoryLock`; any number may read.
    `tf.train.load_checkpoint(folder + "/state")` reads the arrays anywhere.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | WritableFolder,
        identity: dict[str, Any],
        num_kept: int = 3,
        run_id: str | None = None,
    ) -> None:
        self._writable = WritableFolder.at(folder)
        self._folder = self._writable.path
        self._folders = CheckpointFolders.at(self._writable)
        self._identity = json.loads(json.dumps(identity))
        self._num_kept = num_kept
        self._run_id = run_id
        # A save in the background and the caller must not remove each other's files.
        self._writing = threading.RLock()

    def save(
        self, step: int, arrays: dict[str, np.ndarray], ledger: dict[str, Any] | None = None
    ) -> str:
        """Saves a checkpoint, removes old ones, and returns the path.

        Raises NonFiniteError if an array is not finite, DataDamagedError if the best checkpoint is
        unknown, OutputExistsError if this process may no longer write, and StorageError if writing
        fails.
        """
        descriptions = describe_arrays(step, arrays)
        with self._writing:
            best, written = self._read_best(), None
            try:
                self._folders.remove_leftovers()
                self._writable.remove_temporaries()
                self._require_own(step)
                written = self._folders.begin(step)
                with written.reached_by_path() as path:
                    write_arrays(os.path.join(path, ARRAYS_PREFIX), arrays)
                    manifest = manifest_text(
                        path, step, descriptions, self._identity, ledger, self._run_id
                    )
                self._folders.commit(step, written, manifest)
                self._remove_old(step, best)
            except (OSError, tf.errors.OpError) as error:
                # If the folder was lost meanwhile, raise that error instead.
                self._writable.check()
                if written is not None:
                    self._folders.give_up(step, written)
                num_bytes = sum(np.asarray(array).nbytes for array in arrays.values())
                raise self._writing_failed(step, num_bytes, error) from error
        return self._folders.path(step)

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, oldest first."""
        return self._folders.steps()

    def keep_best(self, step: int) -> None:
        """Keeps a checkpoint until another one is the best.

        A save in the background ends first. Raises ValueError if there is no checkpoint of this
        step.
        """
        with self._writing:
            if step not in self.steps():
                self._writable.check()  # raises if the folder was lost
                raise ValueError(f"`step` must be one of {self.steps()}. Received: step={step}")
            record: dict[str, Any] = {"step": step}
            record["sha256"] = checksum(record)
            path = os.path.join(self._folder, _BEST_FILE)
            try:
                self._writable.write(_BEST_FILE, json.dumps(record).encode())
            except OSError as error:
                what = "It cannot be written down which checkpoint is the best"
                remedy = "Make room or check the permissions."
                raise _storage_error(what, error, path, remedy) from error

    def best_step(self, until: int | None = None) -> int | None:
        """Returns the step of the last `keep_best`; `None` before the first.

        A checkpoint after the step `until` may be missing: a run that continues there makes it
        again. Any other missing one raises DataDamagedError.
        """
        step = self._read_best()
        if step is None or (until is not None and step > until):
            return step
        if step not in self.steps():
            raise DataDamagedError(
                "the best checkpoint is missing",
                where=self._folders.path(step),
                remedy=f"Restore it from a copy, or remove {_BEST_FILE} to go on without it.",
            )
        return step

    def remove_leftovers(self) -> list[str]:
        """Removes leftovers of killed processes, and returns their paths.

        Only the process that writes here may call it.
        """
        try:
            with self._writing:
                return self._folders.remove_leftovers() + self._writable.remove_temporaries()
        except OSError as error:
            what = "What a killed process left cannot be removed"
            raise _storage_error(what, error, self._folder) from error

    def load_latest(self) -> tuple[int, dict[str, np.ndarray], list[str]] | None:
        """Reads the newest whole checkpoint; `None` if there are no checkpoints.

        Returns the step, the arrays, and a line for every newer, damaged checkpoint. Raises
        DataDamagedError if all are damaged, and MismatchError for another run or a newer format.
        """
        complaints: list[str] = []
        for step in reversed(self.steps()):
            try:
                return step, self.load(step), complaints
            except DataDamagedError as error:
                complaints.append(f"{error.where}: {error.what}")
        if complaints:
            raise DataDamagedError(
                f"None of the {len(complaints)} checkpoints is whole: {complaints[0]}",
                where=self._folder,
                remedy="Restore the folder from a copy, or choose a new --workdir.",
            )
        return None

    def load(self, step: int) -> dict[str, np.ndarray]:
        """Reads the arrays of one checkpoint after verifying them.

        Raises DataDamagedError if a file is missing or altered, and MismatchError for another run
        or a newer format.
        """
        folder, manifest = self._folders.path(step), self._manifest(step)
        return read_arrays(os.path.join(folder, ARRAYS_PREFIX), manifest["arrays"])

    def ledger_digest(self, step: int) -> dict[str, Any] | None:
        """Returns the `StepLedger.digest` that was saved with a checkpoint, if any.

        Raises as `load`.
        """
        return self._manifest(step).get("ledger")

    def _manifest(self, step: int) -> dict[str, Any]:
        folder = self._folders.path(step)
        manifest = verified_manifest(folder)
        if manifest["step"] != step:
            raise damaged(f"the checkpoint is of step {manifest['step']}", folder)
        differences = describe_differences(manifest["identity"], self._identity)
        if differences:
            raise MismatchError(
                f"The checkpoint belongs to another run; {differences}",
                where=folder,
                remedy="Give the settings it was made with, or choose a new --workdir.",
            )
        return manifest

    def _remove_old(self, step: int, best: int | None) -> None:
        # Later checkpoints are damaged, or the run would have resumed from them: they do not count.
        steps = [each for each in self.steps() if each <= step]
        for old_step in steps[: -self._num_kept]:
            if old_step != best and self._is_own(old_step):
                self._folders.remove(old_step)

    def _is_own(self, step: int) -> bool:
        """True unless a checkpoint names another run."""
        run_id = stored_run_id(self._folders.path(step))
        return None in (run_id, self._run_id) or run_id == self._run_id

    def _require_own(self, step: int) -> None:
        """Refuses to replace a checkpoint of another run; a damaged one is replaced."""
        if step in self.steps() and not self._is_own(step):
            raise OutputExistsError(
                f"The checkpoint of step {step} is of another run with the same settings.",
                where=self._folders.path(step),
                remedy="Move it away, or choose a new --workdir.",
            )

    def _read_best(self) -> int | None:
        path = os.path.join(self._folder, _BEST_FILE)
        try:
            record = read_json_object(path, remedy=_BEST_REMEDY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            what = "It cannot be read which checkpoint is the best"
            raise _storage_error(what, error, path) from error
        is_whole = record.pop("sha256", None) == checksum(record)
        if not is_whole or type(record.get("step")) is not int:
            what = "The note of which checkpoint is the best is damaged."
            raise DataDamagedError(what, where=path, remedy=_BEST_REMEDY)
        return record["step"]

    def _writing_failed(self, step: int, num_bytes: int, error: Exception) -> StorageError:
        needed = f"it needs {num_bytes:,} bytes"
        with contextlib.suppress(OSError):  # an object store or a missing folder
            needed += f", {shutil.disk_usage(self._folder).free:,} are free"
        return StorageError(
            f"The checkpoint of step {step} cannot be written: {first_line(error)}; {needed}.",
            where=self._folders.path(step),
            remedy="Make room or choose another --workdir; the older checkpoints are intact.",
        )


def _storage_error(
    what: str, error: OSError, path: str, remedy: str = "Check the storage and the permissions."
) -> StorageError:
    return StorageError(f"{what}: {first_line(error)}", where=path, remedy=remedy)


class BackgroundSaver(contextlib.AbstractContextManager):
    """Saver of one checkpoint at a time, in a thread.

    The next call reports a failed save, which the store never lists. Leaving the `with` block
    waits for the save in flight; a failed save does not hide another exception. If the interpreter
    exits without that, the save in flight is lost as by a kill, and earlier checkpoints are whole.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._work: queue.Queue[tuple[Any, ...] | None] = queue.Queue()
        self._error: BaseException | None = None
        self._saved_step: int | None = None
        # A daemon, because the interpreter waits for all others before it exits.
        self._thread = threading.Thread(target=self._run, name="checkpoint-saver", daemon=True)
        self._is_closed = False
        self._thread.start()

    def submit(
        self, step: int, arrays: dict[str, np.ndarray], ledger: dict[str, Any] | None = None
    ) -> None:
        """Submits a checkpoint once the previous one is saved; `arrays` must not change afterwards.

        Raises the error of the previous save, or ValueError if the saver is closed.
        """
        if self._is_closed:
            raise ValueError(f"A closed saver cannot save. Received: step={step}")
        self.wait()
        self._work.put((step, arrays, ledger))

    def wait(self) -> None:
        """Blocks until all submitted checkpoints are durable; raises each failure once."""
        self._work.join()
        self.check()

    @property
    def is_idle(self) -> bool:
        """True if no save is in flight and no failure waits to be reported."""
        return self._work.unfinished_tasks == 0 and self._error is None

    @property
    def saved_step(self) -> int | None:
        """Steps done at the last saved checkpoint; `None` before the first."""
        return self._saved_step

    def check(self) -> None:
        """Raises the error of a failed save without waiting, see `wait`."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits, see `wait`, and ends the thread; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.wait()
        finally:
            self._work.put(None)
            self._thread.join()

    def __exit__(self, kind: object, raised: BaseException | None, traceback: object) -> None:
        try:
            self.close()
        except Exception as error:
            if raised is None:
                raise
            raised.add_note(f"The last checkpoint was not saved either: {error}")

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                self._store.save(*work)
                self._saved_step = work[0]
            except BaseException as error:
                self._error = error
            finally:
                # Frees the arrays now, and not when the next ones arrive.
                del work
                self._work.task_done()
