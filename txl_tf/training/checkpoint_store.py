"""Checkpoints that are complete and verified, or not there."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.durability import flush_to_disk
from txl_tf.errors import DataDamagedError, MismatchError, StorageError

FORMAT_VERSION = 1
_FOLDER = re.compile(r"step-(\d{8})")
_MANIFEST = "manifest.json"
_CHECKSUM = "manifest_sha256"


class CheckpointStore:
    """A folder of checkpoints, one subfolder `step-NNNNNNNN` each.

    A checkpoint is written into a hidden folder, forced to the disk and
    renamed, so a subfolder of that name is always complete. Its manifest has
    the SHA-256 of every file, its own included, and the run it belongs to; all
    are checked when it is read, and a damaged checkpoint makes way for the one
    before it.

    The arrays are in TensorFlow's checkpoint format under plain names:
    `tf.train.load_checkpoint(folder + "/state")` reads them anywhere.

    Args:
        folder: path of the folder; made when the first checkpoint is saved.
        identity: dict of JSON values that decide what a step does, such as
            configuration and data fingerprint. A checkpoint with another
            identity is refused.
        num_kept: int. How many of the newest checkpoints are kept.
    """

    def __init__(self, folder: str | Path, identity: dict[str, Any], num_kept: int = 3) -> None:
        self._folder = Path(folder)
        self._identity = json.loads(json.dumps(identity))
        self._num_kept = num_kept

    def save(self, step: int, arrays: dict[str, np.ndarray]) -> Path:
        """Saves a checkpoint and removes the ones that are too old.

        Args:
            step: int. Steps done.
            arrays: dict of name to array.

        Returns:
            The checkpoint's folder.

        Raises:
            StorageError: If it cannot be written; older ones are untouched.
        """
        target = self._folder / f"step-{step:08d}"
        temporary = self._folder / f".{target.name}.{os.getpid()}.tmp"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            temporary.mkdir()
            self._write(temporary, step, arrays)
            self._publish(temporary, target)
            for old_step in self.steps()[: -self._num_kept]:
                shutil.rmtree(self._folder / f"step-{old_step:08d}")
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise StorageError(
                f"The checkpoint of step {step} cannot be written: {_first_line(error)}",
                where=str(target),
                remedy="Make room or choose another --workdir; the older checkpoints are intact.",
            ) from error
        return target

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first."""
        if not self._folder.is_dir():
            return []
        matches = (_FOLDER.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match.group(1)) for match in matches if match)

    def load_latest(self) -> tuple[int, dict[str, np.ndarray], list[str]] | None:
        """Reads the newest checkpoint that is whole.

        Returns:
            Tuple of the step, the arrays, and a line for every newer
            checkpoint that was damaged; `None` if there is no checkpoint.

        Raises:
            DataDamagedError: If there are checkpoints but none is whole.
            MismatchError: If it belongs to another run.
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
                where=str(self._folder),
                remedy="Restore the folder from a copy, or choose a new --workdir.",
            )
        return None

    def load(self, step: int) -> dict[str, np.ndarray]:
        """Reads one checkpoint after verifying it.

        Args:
            step: int. One of `steps()`.

        Returns:
            Dict of name to array.

        Raises:
            DataDamagedError: If a file is missing or not what was written.
            MismatchError: If it belongs to another run.
        """
        folder = self._folder / f"step-{step:08d}"
        manifest = verified_manifest(folder)
        if manifest["step"] != step:
            raise _damaged(f"the checkpoint is of step {manifest['step']}", folder)
        self._check_identity(folder, manifest["identity"])
        return read_arrays(folder, manifest)

    def _write(self, folder: Path, step: int, arrays: dict[str, np.ndarray]) -> None:
        names = sorted(arrays)
        tf.raw_ops.SaveV2(
            prefix=str(folder / "state"),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(arrays[name]) for name in names],
        )
        files = {}
        for path in sorted(folder.iterdir()):
            flush_to_disk(path)
            files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        manifest = {
            "format_version": FORMAT_VERSION,
            "step": step,
            "files": files,
            "arrays": {name: [*arrays[name].shape] for name in names},
            "identity": self._identity,
        }
        manifest[_CHECKSUM] = _checksum(manifest)
        (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        flush_to_disk(folder / _MANIFEST)
        flush_to_disk(folder)

    def _publish(self, temporary: Path, target: Path) -> None:
        if target.exists():
            # Only a damaged checkpoint is written anew. Removing it takes time,
            # moving it away does not.
            replaced = self._folder / f".{target.name}.replaced.tmp"
            target.rename(replaced)
            temporary.rename(target)
            shutil.rmtree(replaced)
        else:
            temporary.rename(target)
        flush_to_disk(self._folder)

    def _check_identity(self, folder: Path, stored: dict[str, Any]) -> None:
        mine, theirs = _flat(self._identity), _flat(stored)
        differing = sorted(
            key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)
        )
        if differing:
            shown = ", ".join(
                f"{key} (stored {theirs.get(key)!r}, now {mine.get(key)!r})"
                for key in differing[:4]
            )
            raise MismatchError(
                f"The checkpoint belongs to another run; {len(differing)} differ: {shown}",
                where=str(folder),
                remedy="Give the settings it was made with, or choose a new --workdir.",
            )

    def _remove_leftovers(self) -> None:
        for path in self._folder.glob(".step-*.tmp"):
            shutil.rmtree(path)


def verified_manifest(folder: Path) -> dict[str, Any]:
    """Reads a checkpoint's manifest and verifies every file against it.

    Args:
        folder: path of one checkpoint.

    Returns:
        The manifest.

    Raises:
        DataDamagedError: If a file is missing or not what was written.
    """
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        checksum = manifest.pop(_CHECKSUM)
        is_known = manifest["format_version"] == FORMAT_VERSION
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged("the manifest cannot be read", folder / _MANIFEST) from error
    if not is_known:
        raise _damaged("the manifest is not of a version that is known", folder / _MANIFEST)
    if checksum != _checksum(manifest):
        raise _damaged("the manifest does not match its own checksum", folder / _MANIFEST)
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise _damaged("the file is missing", path)
        if path.stat().st_size != expected["bytes"] or _sha256(path) != expected["sha256"]:
            raise _damaged("the file is not what was written", path)
    return manifest


def read_arrays(folder: Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    """Reads the arrays of a verified checkpoint.

    Args:
        folder: path of one checkpoint.
        manifest: dict that `verified_manifest` returned.

    Returns:
        Dict of name to array.

    Raises:
        DataDamagedError: If the arrays are not those of the manifest.
    """
    reader = tf.train.load_checkpoint(str(folder / "state"))
    arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    if {name: [*array.shape] for name, array in arrays.items()} != manifest["arrays"]:
        raise _damaged("the arrays are not those of the manifest", folder)
    return {name: np.asarray(array) for name, array in arrays.items()}


def _damaged(what: str, path: Path) -> DataDamagedError:
    return DataDamagedError(what, where=str(path), remedy="Restore it from a copy.")


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else key)
    return flat


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
