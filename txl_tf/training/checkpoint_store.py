"""Store of checkpoints that are complete and verified or not there; saving in the background."""

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
    """A folder of checkpoints, one subfolder `step-NNNNNNNN` each.

    A checkpoint is there when all of it is on the disk, see
    `CheckpointFolders`. Its manifest has checksums of everything, itself
    included, and the run the checkpoint belongs to; all are checked when it is
    read, and a damaged checkpoint makes way for the one before it.

    The arrays are in TensorFlow's checkpoint format under plain names:
    `tf.train.load_checkpoint(folder + "/state")` reads them anywhere.

    One process writes at a time, which has the folder of its lock, see
    `DirectoryLock`; any number may read.

    Args:
        folder: path of the folder, also a remote one (`gs://`), or the
            `WritableFolder`; made when the first checkpoint is saved.
        identity: dict of JSON values that decide what a step does, such as
            configuration and data fingerprint. A checkpoint with another
            identity is refused.
        num_kept: int. How many of the newest checkpoints are kept, beside the
            best one.
        run_id: optional str. Names the run among others of the same identity.
            A checkpoint that says it is of another run is never removed.
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
        """Saves a checkpoint and removes the ones that are too old.

        Args:
            step: int. Steps done.
            arrays: dict of name to array.
            ledger: optional dict. `StepLedger.digest` at this step.

        Returns:
            Path of the checkpoint's folder.

        Raises:
            NonFiniteError: If an array is not finite; nothing is written.
            StorageError: If it cannot be written; older ones are untouched.
            DataDamagedError: If it is not known any more which checkpoint is
                the best; nothing is written.
            OutputExistsError: If this process may not write here any more.
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
                # Where the folder was taken away meanwhile, that is what went wrong.
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

        A save in the background ends first.

        Raises:
            ValueError: If there is no checkpoint of this step.
            StorageError: If it cannot be written down.
            OutputExistsError: If this process may not write here any more.
        """
        with self._writing:
            if step not in self.steps():
                self._writable.check()  # where the folder was taken away, that is what went wrong
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
        """Returns the step that `keep_best` was called with last.

        Args:
            until: optional int. A checkpoint of a later step may be gone: a
                run that goes on from this step makes it again.

        Returns:
            The step; `None` if there has been no such call.

        Raises:
            DataDamagedError: If it cannot be told, or the checkpoint is gone.
            StorageError: If the storage does not answer.
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
        """Removes what killed processes left unfinished, and returns the paths.

        Only the process that writes here may call it.

        Raises:
            StorageError: If one cannot be removed.
            OutputExistsError: If this process may not write here any more.
        """
        try:
            with self._writing:
                return self._folders.remove_leftovers() + self._writable.remove_temporaries()
        except OSError as error:
            what = "What a killed process left cannot be removed"
            raise _storage_error(what, error, self._folder) from error

    def load_latest(self) -> tuple[int, dict[str, np.ndarray], list[str]] | None:
        """Reads the newest checkpoint that is whole.

        Returns:
            Tuple of the step, the arrays, and a line for every newer
            checkpoint that was damaged; `None` if there is no checkpoint.

        Raises:
            DataDamagedError: If there are checkpoints but none is whole.
            MismatchError: If it belongs to another run or a newer format.
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

        Raises:
            DataDamagedError: If a file is missing or not what was written.
            MismatchError: If it belongs to another run or a newer format.
        """
        folder, manifest = self._folders.path(step), self._manifest(step)
        return read_arrays(os.path.join(folder, ARRAYS_PREFIX), manifest["arrays"])

    def ledger_digest(self, step: int) -> dict[str, Any] | None:
        """Returns the `StepLedger.digest` that was saved with a checkpoint, if one was.

        Raises:
            DataDamagedError: If the checkpoint is not what was written.
            MismatchError: If it belongs to another run or a newer format.
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
        # A later one was damaged, or the run would not be here: it must not count.
        steps = [each for each in self.steps() if each <= step]
        for old_step in steps[: -self._num_kept]:
            if old_step != best and self._is_own(old_step):
                self._folders.remove(old_step)

    def _is_own(self, step: int) -> bool:
        """Whether a checkpoint does not say that it is of another run."""
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
        with contextlib.suppress(OSError):  # an object store, or a folder that is not there
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

    A save that fails is reported by the next call, and is never listed by the
    store. Leaving the `with` block waits for the save in flight; where an
    exception is on its way, a failed save does not hide it. If the interpreter
    exits without that, the save in flight is lost as if the process had been
    killed, and the checkpoints before it are whole.

    Args:
        store: `CheckpointStore` to save with.
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
        """Hands a checkpoint over and returns, once the one before it is saved.

        Args:
            step: int. Steps done.
            arrays: dict of name to array. They must not be changed any more.
            ledger: optional dict, see `CheckpointStore.save`.

        Raises:
            JobError: If the save before it failed, as in `CheckpointStore.save`.
            ValueError: If it is closed.
        """
        if self._is_closed:
            raise ValueError(f"A closed saver cannot save. Received: step={step}")
        self.wait()
        self._work.put((step, arrays, ledger))

    def wait(self) -> None:
        """Blocks until all that was submitted is durable.

        Raises:
            JobError: If a save failed, as in `CheckpointStore.save`. Each failure is
                raised once.
        """
        self._work.join()
        self.check()

    @property
    def is_idle(self) -> bool:
        """Whether no save is in flight and no failed one waits to be reported."""
        return self._work.unfinished_tasks == 0 and self._error is None

    @property
    def saved_step(self) -> int | None:
        """Steps done at the last checkpoint that it has saved; `None` before the first."""
        return self._saved_step

    def check(self) -> None:
        """Raises the error of a save that has failed by now, without waiting, see `wait`."""
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
                # The arrays are freed now and not when the next ones come.
                del work
                self._work.task_done()
