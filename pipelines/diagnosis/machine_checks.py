"""Facts about the machine, and checks of its environment, folders, TPU and metadata server."""

import contextlib
import dataclasses
import email.utils
import fcntl
import glob
import http.client
import json
import os
import platform
import secrets
import shlex
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Self

from packaging.utils import canonicalize_name

from txl_tf.errors import InputMissingError, OutputExistsError, StorageError
from txl_tf.models.sizes import NOTICE_SECONDS, CheckpointCost
from txl_tf.storage.files import (
    file_bytes,
    first_line,
    is_remote,
    path_exists,
    read_file,
    remove_file,
    write_file,
)

from . import Finding

# The older driver of the chips, and the one of v5p, v6e and later.
_TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
BUILDS = ("tensorflow", "tensorflow-tpu", "tensorflow-cpu", "tf-nightly", "tf-nightly-tpu")
"""The distributions that are TensorFlow; only one of them can be installed."""
_LIBRARY = "tensorflow/libtensorflow_cc.so.2"
_PRODUCT_FILE = Path("/sys/class/dmi/id/product_name")


@dataclasses.dataclass(frozen=True)
class MachineFacts:
    """Facts about a machine on which the checks decide."""

    python: str = ""
    """Version of Python."""
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Versions of the installed packages by canonical name."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    build_on_disk: str | None = None
    """The one of `BUILDS` whose library is on the disk; `None` if it is of no installed one."""
    tpu_files: tuple[str, ...] = ()
    """Devices that look like TPU chips."""
    lock_file: Path = Path("/tmp/libtpu_lockfile")
    """File that processes with a TPU lock against each other."""
    keras_settings: Path = Path("keras.json")
    is_google_machine: bool = False

    @classmethod
    def collect(cls) -> Self:
        """Collects the facts of this machine."""
        names = [(each.metadata["Name"], each.version) for each in metadata.distributions()]
        home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
        return cls(
            python=platform.python_version(),
            # The first of two is the one that Python imports.
            packages={
                canonicalize_name(name): version for name, version in reversed(names) if name
            },
            environment=dict(os.environ),
            build_on_disk=_build_on_disk(),
            tpu_files=tuple(sorted(each for part in _TPU_FILES for each in glob.glob(part))),
            keras_settings=Path(home) / "keras.json",
            is_google_machine=_is_google_machine(),
        )


def _build_on_disk() -> str | None:
    """Identifies the installed TensorFlow build by the size of its library."""
    for build in BUILDS:
        try:
            found = metadata.distribution(build)
        except metadata.PackageNotFoundError:
            continue
        for file in found.files or ():
            if str(file) == _LIBRARY:
                path = Path(str(found.locate_file(file)))
                if path.is_file() and path.stat().st_size == file.size:
                    return build
    return None


def _is_google_machine() -> bool:
    try:
        return "Google" in _PRODUCT_FILE.read_text()
    except OSError:
        return False


_GIGABYTE = 1e9


def check_checkpoints(cost: CheckpointCost, free_bytes: int | None = None) -> Iterator[Finding]:
    """Checks time and room for the checkpoints of an experiment.

    Args:
        cost: `CheckpointCost`.
        free_bytes: optional int. Room in the folder for temporary files;
            looked up by default.
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
        tpu: optional str. The value of `--tpu` of the job.

    Returns:
        One finding for each variable that hurts, or a single good one.
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

    A missing folder is not made: the check is of the existing folder above it.
    A remote folder (`gs://bucket/path`) needs TensorFlow.
    """
    check = f"folder {folder}"
    existing = folder if is_remote(folder) else str(_existing_parent(folder))
    path = os.path.join(existing, f"txl-doctor-{secrets.token_hex(8)}")
    try:
        write_file(path, _CONTENT)
        try:
            is_whole = read_file(path) == _CONTENT and file_bytes(path) == len(_CONTENT)
        finally:
            remove_file(path)
        is_gone = not path_exists(path)
    except (OSError, ValueError, NotImplementedError) as error:
        failed = first_line(error)
    else:
        failed = "" if is_gone else "a removed file is still there"
        failed = failed if is_whole else "what is read is not what was written"
    if failed:
        return Finding.fault(check, failed, _remedy(existing), StorageError)
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


def _existing_parent(folder: str) -> Path:
    path = Path(folder).absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def _remedy(folder: str) -> str:
    if folder.startswith("gs://"):
        bucket = folder.split("/")[2]
        return f"gcloud storage ls gs://{bucket}, with the service account of this machine"
    if is_remote(folder):
        return "Check the address and the permissions."
    return f"ls -ld {shlex.quote(folder)}; df -h {shlex.quote(folder)}"


_HOST_VARIABLE = "GCE_METADATA_HOST"
_HOST = "169.254.169.254"
_HEADERS = {"Metadata-Flavor": "Google"}
_TIMEOUT_SECONDS = 3.0
# Access tokens are refused by a clock that is further off than some minutes.
_LARGEST_SKEW_SECONDS = 60.0


def check_metadata(facts: MachineFacts) -> Finding | None:
    """Asks the metadata server, which gives access to `gs://` and tells of preemption.

    `GCE_METADATA_HOST` of the environment names another server. Returns `None`
    on a machine that is not of Google Cloud.
    """
    named = facts.environment.get(_HOST_VARIABLE)
    if named is None and not facts.is_google_machine:
        return None
    host = named or _HOST
    check = "metadata server"
    remedy = f"curl -H 'Metadata-Flavor: Google' http://{host}/computeMetadata/v1/instance/id"
    try:
        status, flavor, date = _ask(host)
    except (OSError, http.client.HTTPException) as error:
        what = f"{host} does not answer ({type(error).__name__}): no access to gs://, and no word"
        return Finding.warning(check, f"{what} of preemption", remedy)
    if status != 200 or flavor != "Google":
        return Finding.warning(check, f"{host} answers, but is none: status {status}", remedy)
    skew_seconds = _skew_seconds(date)
    if abs(skew_seconds) > _LARGEST_SKEW_SECONDS:
        what = f"this machine's clock is off by {skew_seconds:.0f} s; gs:// may refuse it"
        return Finding.warning("clock", what, "sudo chronyc makestep")
    return Finding.ok(check, f"{host} answers, and the clocks agree")


def _ask(host: str) -> tuple[int, str | None, str | None]:
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/computeMetadata/v1/instance/id", headers=_HEADERS)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["Metadata-Flavor"], response.headers["Date"]
    finally:
        connection.close()


def _skew_seconds(date: str | None) -> float:
    if date is None:
        return 0.0
    try:
        return time.time() - email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return 0.0
