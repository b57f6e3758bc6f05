"""Checkpoints: written in one piece, verified when read, kept, and saved in the background.

A checkpoint is a folder `step-NNNNNNNN` with two files. `state.data` has the bytes of all arrays,
one after the other. `manifest.json` is written last: type, shape and CRC-32 of each array in order,
the identity of the run, and its own SHA-256. `read_checkpoint` decides whether it is valid.
"""

import contextlib
import json
import math
import os
import re
import shutil
import threading
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from txl_tf.config.differences import describe_differences
from txl_tf.errors import (
    DataDamagedError,
    MismatchError,
    NonFiniteError,
    StorageError,
    first_line,
    storage_errors,
)
from txl_tf.storage.files import file_blocks, is_remote, open_new, path_exists
from txl_tf.storage.listed_files import listed_file
from txl_tf.storage.strict_json import json_sha256, read_json_object
from txl_tf.storage.writable_folder import WritableFolder

MANIFEST_FILE = "manifest.json"
DATA_FILE = "state.data"
FORMAT_VERSION = 4
_WRITTEN_BYTES = 8 << 20  # at once
_BEST_FILE = "best.json"
_UNFINISHED_FILE = "unfinished"
_CHECKSUM = "sha256"
_FOLDER = re.compile(r"step-(\d{8}|[1-9]\d{8,})")
_TEMPORARY = re.compile(r"\.step-.*\.tmp")
_REMEDY = "Restore the checkpoint from a copy."
_BEST_REMEDY = "Restore the file from a copy, or remove it; the next best step writes it anew."


def step_of_folder(name: str) -> int | None:
    """Returns the step in the name of a checkpoint's folder; `None` for other names."""
    match = _FOLDER.fullmatch(name)
    return None if match is None else int(match[1])


def _name(step: int) -> str:
    return f"step-{step:08d}"


def read_checkpoint(folder: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads manifest and arrays of a checkpoint, which is valid if this succeeds.

    Raises DataDamagedError if a file is missing or altered, MismatchError for another version, and
    StorageError if a store does not answer.
    """
    manifest, path = read_manifest(folder), os.path.join(folder, DATA_FILE)
    try:
        return manifest, _read_arrays(folder, manifest["arrays"])
    except OSError as error:
        raise _unreadable(error, path) from error
    except (TypeError, ValueError) as error:
        raise DataDamagedError(
            f"the arrays cannot be read: {first_line(error)}", where=path, remedy=_REMEDY
        ) from error


def _read_arrays(folder: str, entries: Mapping[str, Any]) -> dict[str, np.ndarray]:
    dtypes = [
        np.dtype(ml_dtypes.bfloat16 if n == "bfloat16" else n) for n, _, _ in entries.values()
    ]
    sizes = [
        math.prod(shape) * dtype.itemsize
        for dtype, (_, shape, _) in zip(dtypes, entries.values(), strict=True)
    ]
    listed_in = os.path.join(folder, MANIFEST_FILE)
    path = listed_file(folder, DATA_FILE, listed_in=listed_in, num_bytes=sum(sizes))
    arrays, blocks, buffer = {}, file_blocks(path), memoryview(b"")
    for dtype, size, (name, (_, shape, crc32)) in zip(dtypes, sizes, entries.items(), strict=True):
        content, num_filled = np.empty(size, np.uint8), 0
        while num_filled < size:
            buffer = buffer or memoryview(next(blocks, b""))
            part = np.frombuffer(buffer[: size - num_filled], np.uint8)
            if not len(part):
                raise ValueError("the file has become shorter")
            content[num_filled : num_filled + len(part)] = part
            num_filled, buffer = num_filled + len(part), buffer[len(part) :]
        if zlib.crc32(content.data) != crc32:
            raise ValueError(f"the content of `{name}` was altered")
        arrays[name] = content.view(dtype).reshape(shape)
    return arrays


def read_manifest(folder: str) -> dict[str, Any]:
    """Reads the manifest of a checkpoint; errors of `read_checkpoint`."""
    path = os.path.join(folder, MANIFEST_FILE)
    try:
        manifest = _unsealed(path, _REMEDY)
    except OSError as error:
        raise _unreadable(error, path) from error
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise MismatchError(
            f"The checkpoint has format {ascii(version)[:40]}; this version of txl-tf reads format "
            f"{FORMAT_VERSION}.",
            where=path,
            remedy="Use the version of txl-tf that wrote it.",
        )
    return manifest


def write_checkpoint(
    folder: str,
    step: int,
    arrays: Mapping[str, np.ndarray],
    identity: dict[str, Any],
    ledger: dict[str, Any] | None = None,
) -> bytes:
    """Writes arrays to a folder; returns the content of the manifest, to be written last."""
    entries = {}
    with open_new(os.path.join(folder, DATA_FILE)) as file:
        for name in sorted(arrays):
            array = np.asarray(arrays[name])
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for start in range(0, len(content), _WRITTEN_BYTES):
                file.write(content[start : start + _WRITTEN_BYTES].tobytes())
            entries[name] = (array.dtype.name, array.shape, zlib.crc32(content.data))
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "arrays": entries,
        "identity": identity,
    }
    return _sealed(manifest if ledger is None else manifest | {"ledger": ledger})


def require_finite(step: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises NonFiniteError if an array has an infinity or NaN."""
    bad_names = [name for name in sorted(arrays) if not _is_finite(np.asarray(arrays[name]))]
    if bad_names:
        more = f" and {len(bad_names) - 1} more" if len(bad_names) > 1 else ""
        raise NonFiniteError(
            f"The state of step {step} is not finite and is not saved.",
            where=f"{bad_names[0]}{more}",
            remedy="Start again from the last checkpoint, which is finite.",
        )


def _is_finite(array: np.ndarray) -> bool:
    # With a NaN, both are NaN, and bfloat16 warns. `np.isfinite(array)` would take memory.
    with np.errstate(invalid="ignore"):
        return not array.size or bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def _sealed(values: dict[str, Any]) -> bytes:
    """Writes values as JSON with their own checksum."""
    return json.dumps(values | {_CHECKSUM: json_sha256(values)}, indent=1).encode()


def _unsealed(path: str, remedy: str) -> dict[str, Any]:
    """Reads a file of `_sealed`; DataDamagedError if it does not match its own checksum."""
    values = read_json_object(path, remedy=remedy)
    if values.pop(_CHECKSUM, None) != json_sha256(values):
        raise DataDamagedError(
            "the file does not match its own checksum", where=path, remedy=remedy
        )
    return values


def _unreadable(error: OSError, path: str) -> DataDamagedError | StorageError:
    """Creates the error for a checkpoint file that cannot be read.

    A remote store may answer later, and an older checkpoint would not help.
    """
    is_missing = isinstance(error, FileNotFoundError)
    what = "the file is missing" if is_missing else f"the file cannot be read: {first_line(error)}"
    if is_remote(path) and not is_missing:
        return StorageError(what, where=path, remedy="Start again when the storage answers.")
    return DataDamagedError(what, where=path, remedy=_REMEDY)


class CheckpointStore:
    """Folder of the checkpoints of a run; the `num_kept` newest and the best one are kept.

    A checkpoint of another `identity`, the settings that decide a step, is refused. A damaged one
    makes way for the one before it. One process writes at a time, in its
    `locked_folder`; any number may read.
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
        # A save in the background and the caller must not remove each other's files.
        self._writing = threading.RLock()

    def path(self, step: int) -> str:
        """Returns the path of the checkpoint of a step."""
        return os.path.join(self._folder.path, _name(step))

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, oldest first."""
        return [step for step in self._all_steps() if not self._is_unfinished(step)]

    def load_latest(self) -> tuple[int, dict[str, np.ndarray], list[str]] | None:
        """Reads the newest whole checkpoint; `None` if there are no checkpoints.

        Returns the step, the arrays, and a line for every newer, damaged checkpoint. Raises
        DataDamagedError if all are damaged, and MismatchError for another run or another format.
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
        """Reads the arrays of one checkpoint; errors of `read_checkpoint` and `load_latest`."""
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
                remedy=_REMEDY,
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

        A kill at any moment leaves only whole checkpoints and leftovers. Raises NonFiniteError if
        an array is not finite, OutputExistsError if this process may no longer write, and
        StorageError if writing fails.
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
                # If the folder was lost meanwhile, raise that error instead.
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
        with self._writing:
            what = "The number of the best checkpoint cannot be written"
            remedy = "Make room or check the permissions."
            with storage_errors(what, self._best_path, remedy):
                self._folder.write(_BEST_FILE, _sealed({"step": step}))

    def best_step(self, until: int | None = None) -> int | None:
        """Returns the step of the last `keep_best`; `None` before the first.

        A checkpoint after the step `until` may be missing: a run that continues there makes it
        again. Any other missing one raises DataDamagedError.
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
        """Removes leftovers of killed processes, and returns their paths; for the writer alone."""
        what = "The unfinished files of a killed process cannot be removed"
        with storage_errors(what, self._folder.path), self._writing:
            return self._remove_leftovers()

    def _commit(self, step: int, folder: WritableFolder, manifest: bytes) -> None:
        """Turns a written folder into a checkpoint, durable and in one piece."""
        hidden, name = os.path.basename(folder.path), _name(step)
        if self._folder.subfolder(name).names():  # a damaged one
            self._remove(step)
        if not self._folder.is_remote:
            folder.write(MANIFEST_FILE, manifest)
            self._folder.flush_tree(hidden)
            self._folder.rename(hidden, name)
            return
        # A store renames file by file, so a note comes before the files, and the manifest last.
        target = self._folder.subfolder(name)
        target.write(_UNFINISHED_FILE, b"")
        # By name, because a listing may be outdated.
        self._folder.rename(os.path.join(hidden, DATA_FILE), os.path.join(name, DATA_FILE))
        target.write(MANIFEST_FILE, manifest)
        target.remove_file(_UNFINISHED_FILE)
        self._folder.remove_folder(hidden)

    def _remove(self, step: int) -> None:
        """Removes a checkpoint; a kill meanwhile leaves it whole or a leftover."""
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
        """True for a folder in a store that was never a checkpoint, or is being removed.

        Arrays with neither manifest nor note mean a lost manifest, which is damage.
        """
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
        unfinished = [step for step in self._all_steps() if self._is_unfinished(step)]
        for step in unfinished:
            self._remove(step)
        leftovers = [*names, *map(_name, unfinished)]
        paths = [os.path.join(self._folder.path, name) for name in leftovers]
        return paths + self._folder.remove_temporaries()

    def _remove_old(self, step: int, best: int | None) -> None:
        # Later checkpoints are damaged, or the run would have resumed from them: they do not count.
        steps = [each for each in self.steps() if each <= step]
        for old_step in steps[: -self._num_kept]:
            if old_step != best:
                self._remove(old_step)

    @property
    def _best_path(self) -> str:
        return os.path.join(self._folder.path, _BEST_FILE)

    def _read_best(self) -> int | None:
        what = "The number of the best checkpoint cannot be read"
        absence = contextlib.suppress(FileNotFoundError, NotADirectoryError)
        with storage_errors(what, self._best_path), absence:
            return _unsealed(self._best_path, _BEST_REMEDY)["step"]
        return None

    def _writing_failed(self, step: int, num_bytes: int, error: Exception) -> StorageError:
        needed = f"it needs {num_bytes:,} bytes"
        with contextlib.suppress(OSError):  # an object store or a missing folder
            needed += f", {shutil.disk_usage(self._folder.path).free:,} are free"
        return StorageError(
            f"The checkpoint of step {step} cannot be written: {first_line(error)}; {needed}.",
            where=self.path(step),
            remedy="Make room or choose another --workdir; the older checkpoints are intact.",
        )


class BackgroundSaver(contextlib.AbstractContextManager):
    """Saver of one checkpoint at a time, in a thread.

    The next call reports a failed save, which the store never lists. Leaving the `with` block
    waits for the save in flight; a failed save does not hide another exception.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(
        self, step: int, arrays: dict[str, np.ndarray], ledger: dict[str, Any] | None = None
    ) -> None:
        """Submits a checkpoint once the previous one is saved; `arrays` must not change afterwards.

        Raises the error of the previous save.
        """
        self.wait()
        # A daemon, because the interpreter waits for all others before it exits. A save in flight
        # is then lost as by a kill.
        self._thread = threading.Thread(
            target=self._save, args=(step, arrays, ledger), name="checkpoint-saver", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Blocks until all submitted checkpoints are durable; raises each failure once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    @property
    def is_idle(self) -> bool:
        """True if no save is in flight and no failure waits to be reported."""
        is_saving = self._thread is not None and self._thread.is_alive()
        return not is_saving and self._error is None

    def check(self) -> None:
        """Raises the error of a failed save without waiting, see `wait`."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __exit__(self, kind: object, exception: BaseException | None, traceback: object) -> None:
        try:
            self.wait()
        except Exception as error:
            if exception is None:
                raise
            exception.add_note(f"The last checkpoint was not saved either: {error}")

    def _save(
        self, step: int, arrays: dict[str, np.ndarray], ledger: dict[str, Any] | None
    ) -> None:
        try:
            self._store.save(step, arrays, ledger)
        except BaseException as error:
            self._error = error
