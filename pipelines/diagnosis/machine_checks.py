"""Checks of environment, folders, TPU devices and the metadata server."""

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pipelines.diagnosis.finding import Finding
from pipelines.diagnosis.machine_facts import MachineFacts
from txl_tf.errors import InputMissingError, OutputExistsError, StorageError
from txl_tf.storage.files import (
    file_bytes,
    first_line,
    is_remote,
    path_exists,
    read_file,
    remove_file,
    write_file,
)
from txl_tf.training.checkpoint_cost import NOTICE_SECONDS, CheckpointCost

_GIGABYTE = 1e9


def check_checkpoints(cost: CheckpointCost, free_bytes: int | None = None) -> Iterator[Finding]:
    """Checks the checkpoints of an experiment.

    Args:
        cost: `CheckpointCost`.
        free_bytes: optional int. Room in the folder for temporary files;
            looked up by default.

    Yields:
        A `Finding` for the time and one for the room.
    """
    what = f"{cost.num_bytes / _GIGABYTE:.1f} GB, about {cost.upload_seconds:.0f} s to a store"
    if cost.fits_notice:
        yield Finding.ok("checkpoint time", what)
    else:
        yield Finding.warning(
            "checkpoint time",
            f"{what}; a spot VM is given {NOTICE_SECONDS:.0f} s",
            "--set training.checkpoint_every_steps=N: the steps since the last one are lost",
        )
    folder = tempfile.gettempdir()
    if free_bytes is None:
        free_bytes = shutil.disk_usage(folder).free
    room = f"{free_bytes / _GIGABYTE:.1f} GB free in {folder}"
    if free_bytes > cost.local_bytes:
        yield Finding.ok("checkpoint room", room)
    else:
        yield Finding.warning(
            "checkpoint room",
            f"only {room}; TensorFlow writes a checkpoint for a store there first",
            f"df -h {folder}, and remove something",
        )


_LOCAL = "local"
# `struct flock` of 64-bit Linux: type, whence, start, length, process.
_FLOCK = "hhqqi4x"
_OFF = ("", "0", "false", "False")


def check_environment(facts: MachineFacts, tpu: str | None) -> list[Finding]:
    """Checks the environment variables that change what TensorFlow and Keras do.

    Args:
        facts: `MachineFacts`.
        tpu: optional str. What `--tpu` of the job will be.

    Returns:
        List of `Finding`, one for each variable that hurts, or a single good one.
    """
    environment = facts.environment
    findings = []
    backend = environment.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        findings.append(_fault("KERAS_BACKEND", f"is {backend}; the jobs need tensorflow"))
    if environment.get("TF_USE_LEGACY_KERAS", "") not in _OFF:
        findings.append(_fault("TF_USE_LEGACY_KERAS", "turns on Keras 2, which this is not for"))
    for name in ("TF_XLA_FLAGS", "XLA_FLAGS"):
        if environment.get(name):
            what = f"changes how programs are compiled: {environment[name][:80]}"
            findings.append(Finding.warning(name, what, f"unset {name}"))
    if environment.get("TF_CONFIG"):
        what = "names several workers; the checks are of this machine alone"
        findings.append(Finding.warning("TF_CONFIG", what, "unset TF_CONFIG, if this is no worker"))
    findings += _check_tpu_variables(facts, tpu)
    return findings or [Finding.ok("environment", "no variable that hurts")]


def check_keras_settings(facts: MachineFacts) -> Finding:
    """Checks Keras' file of settings, which every program of this user reads."""
    path = facts.keras_settings
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Finding.ok("Keras settings", "the defaults")
    except (OSError, ValueError) as error:
        return Finding.fault("Keras settings", f"{path} cannot be read: {error}", f"rm {path}")
    changed = settings.get("floatx", "float32") if isinstance(settings, dict) else "no object"
    if changed != "float32":
        return Finding.fault(
            "Keras settings", f"{path} sets floatx to {changed}; it must be float32", f"rm {path}"
        )
    return Finding.ok("Keras settings", f"{path}")


def check_tpu_lock(facts: MachineFacts, tpu: str | None) -> Finding | None:
    """Checks whether another process has the TPU; nothing to say where no TPU is meant."""
    if tpu != _LOCAL and not facts.tpu_files:
        return None
    path = facts.lock_file
    if not path.exists():
        return Finding.ok("TPU lock", "nobody holds the TPU")
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as error:
        return Finding.fault(
            "TPU lock",
            f"{path} is left of another user: {error.strerror}",
            f"sudo rm {path}",
            OutputExistsError,
        )
    try:
        owner = _lock_owner(descriptor)
    finally:
        os.close(descriptor)
    if owner is None:
        return Finding.ok("TPU lock", f"{path} is left of an earlier process; nobody holds it")
    return Finding.fault(
        "TPU lock",
        f"the TPU is in use by process {owner} ({_command_of(owner)})",
        f"kill {owner}",
        OutputExistsError,
    )


def check_tpu_files(facts: MachineFacts, tpu: str | None) -> Finding | None:
    """Checks whether the machine has TPU chips, where they are asked for."""
    if facts.tpu_files:
        return Finding.ok("TPU chips", ", ".join(facts.tpu_files))
    if tpu != _LOCAL:
        return None
    return Finding.fault(
        "TPU chips",
        "neither /dev/accel* nor /dev/vfio has any",
        "txl launch --kind tpu-vm ... prints how to get a machine that has",
        InputMissingError,
    )


def _check_tpu_variables(facts: MachineFacts, tpu: str | None) -> list[Finding]:
    findings = []
    load = facts.environment.get("TPU_LOAD_LIBRARY")
    if tpu == _LOCAL and load == "0":
        findings.append(_fault("TPU_LOAD_LIBRARY", "is 0, so that no TPU is looked for"))
    if tpu not in (None, _LOCAL) and facts.tpu_files and load != "0":
        what = "is not 0: this process and the server of this host both take the TPU"
        findings.append(
            Finding.fault("TPU_LOAD_LIBRARY", what, "export TPU_LOAD_LIBRARY=0", OutputExistsError)
        )
    library = facts.environment.get("TPU_LIBRARY_PATH")
    if library and not Path(library).is_file():
        findings.append(_fault("TPU_LIBRARY_PATH", f"names no file: {library}"))
    return findings


def _fault(variable: str, what: str) -> Finding:
    return Finding.fault(variable, what, f"unset {variable}")


def _lock_owner(descriptor: int) -> int | None:
    """Returns the process that holds a lock on a file, asked for without taking it."""
    question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, owner = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return None if kind == fcntl.F_UNLCK else owner


def _command_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/comm").read_text().strip()
    return "of another user"


_CONTENT = b"txl doctor was here\n" * 100
_LEAST_BYTES = 1 << 30
_GOOD_BYTES = 10 << 30
_GIBIBYTE = 1 << 30


def check_folder(folder: str) -> Finding:
    """Writes, renames, reads and removes a file; a local one is forced to the disk.

    A folder that is not there yet is not made: what counts is the one that it
    would be made in.

    Args:
        folder: str. Local or remote (`gs://bucket/path`); a remote one needs
            TensorFlow.
    """
    check = f"folder {folder}"
    existing = folder if is_remote(folder) else _existing_parent(folder)
    path = os.path.join(existing, f"txl-doctor-{secrets.token_hex(8)}")
    try:
        write_file(path, _CONTENT)
        try:
            is_whole = read_file(path) == _CONTENT and file_bytes(path) == len(_CONTENT)
        finally:
            remove_file(path)
        is_gone = not path_exists(path)
    except (OSError, ValueError, NotImplementedError) as error:
        return Finding.fault(check, first_line(error), _remedy(existing), StorageError)
    if not is_whole:
        return Finding.fault(
            check, "what is read is not what was written", _remedy(existing), StorageError
        )
    if not is_gone:
        return Finding.fault(
            check, "a removed file is still there", _remedy(existing), StorageError
        )
    if is_remote(folder):
        return Finding.ok(check, "written, renamed, read and removed")
    return _check_space(check, existing)


def _check_space(check: str, folder: str) -> Finding:
    free_bytes = shutil.disk_usage(folder).free
    what = f"{free_bytes / _GIBIBYTE:.1f} GiB free"
    remedy = f"df -h {shlex.quote(folder)}, and remove something"
    if free_bytes < _LEAST_BYTES:
        return Finding.fault(check, f"only {what}", remedy, StorageError)
    if free_bytes < _GOOD_BYTES:
        return Finding.warning(check, f"only {what}", remedy)
    return Finding.ok(check, f"written, forced to the disk, renamed, read and removed; {what}")


def _existing_parent(folder: str) -> str:
    path = Path(folder).absolute()
    while not path.exists():
        path = path.parent
    return str(path)


def _remedy(folder: str) -> str:
    if folder.startswith("gs://"):
        bucket = folder.split("/")[2]
        return f"gcloud storage ls gs://{bucket}, with the service account of this machine"
    if is_remote(folder):
        return "Check the address and the permissions."
    return f"ls -ld {shlex.quote(folder)}; df -h {shlex.quote(folder)}"
