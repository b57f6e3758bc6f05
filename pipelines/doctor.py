"""Diagnosis of an installation with a remedy for each problem: `txl doctor`.

    txl doctor
    txl doctor --data data/novels --folder runs
    txl doctor --tpu local --folder gs://BUCKET/runs

TensorFlow is tried in a process of its own, so that a crash or a hang is a finding like any
other. Exit codes: 0 no fault (there may be warnings); else the code of the first fault, since
later ones often follow from it: 78 versions or settings, 66 no TPU or data set, 65 a damaged
data set, 73 the TPU is in use, 74 a folder, 70 a device that adds up wrong.
"""

import argparse
import dataclasses
import fcntl
import glob
import json
import os
import platform
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from txl_tf import errors as job_errors
from txl_tf.errors import (
    InputMissingError,
    JobError,
    MismatchError,
    NonFiniteError,
    OutputExistsError,
    StorageError,
    UsageError,
)
from txl_tf.storage.files import first_line, is_remote, read_file, remove_file, write_file

from .arguments import add_number, add_tpu_argument

if TYPE_CHECKING:
    # The probe imports it in its own stage.
    import tensorflow as tf

_PYTHON = SpecifierSet(">=3.11,<3.14")
# A version outside these ranges of pyproject.toml is a fault, any other difference a warning.
_CORE_RANGES = {
    "keras": SpecifierSet(">=3.15.1,<4"),
    "tensorflow": SpecifierSet("~=2.20.0"),
    "tensorflow-text": SpecifierSet("~=2.20.0"),
}
_TPU_BUILD = "tensorflow-tpu"
_BUILDS = ("tensorflow", _TPU_BUILD, "tensorflow-cpu", "tf-nightly", "tf-nightly-tpu")
# Device files of the older TPU driver, and of v5p, v6e and later.
_TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
_TPU_LOCK = "/tmp/libtpu_lockfile"
# `struct flock` of 64-bit Linux: type, whence, start, length, process.
_FLOCK = "hhqqi4x"
_CONTENT = b"txl doctor was here\n" * 100
_LEAST_BYTES, _GOOD_BYTES = 1 << 30, 10 << 30
# Two replicas suffice to check a sum.
_NUM_CPU_REPLICAS = 2


@dataclasses.dataclass(frozen=True)
class Finding:
    """Result of one check: verdict, message and remedy."""

    check: str
    what: str
    remedy: str = ""
    """The command that repairs it; empty where nothing is wrong."""
    error: type[JobError] | None = None
    """The error with which a fault ends the job; None for warnings and good findings."""

    @property
    def status(self) -> str:
        """`ok`, `warning` or `fault`; after a fault, a job fails or computes wrong numbers."""
        return "fault" if self.error else "warning" if self.remedy else "ok"

    def describe(self) -> str:
        """Formats the finding in one line, and its remedy in a second."""
        line = f"{self.status:<8} {self.check}: {self.what}"
        return f"{line}\n{' ' * 9}{self.remedy}" if self.remedy else line

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        values = {name: getattr(self, name) for name in ("check", "status", "what", "remedy")}
        return {**values, "exit_code": self.error.exit_code if self.error else 0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_tpu_argument(parser, "check this TPU (default: the devices of this machine)")
    for option, meaning in (
        ("--folder", "check that a job can write here; may be repeated"),
        ("--data", "check this prepared data set; may be repeated"),
    ):
        parser.add_argument(option, metavar="PATH", action="append", default=[], help=meaning)
    meaning = "how long TensorFlow may take for its part"
    add_number(parser, "--timeout-seconds", 1e-3, 86_400.0, meaning, default=300.0, metavar="S")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuses empty paths."""
    if "" in (*arguments.folder, *arguments.data):
        raise UsageError("A path is empty.", where="--folder or --data")


def run(arguments: argparse.Namespace) -> None:
    """Runs the checks, and prints each finding at once."""
    findings = []
    for finding in _findings(arguments):
        findings.append(finding)
        if not arguments.json:
            print(finding.describe(), flush=True)
    if arguments.json:
        print(json.dumps([finding.to_dict() for finding in findings], indent=2))
    faults = [finding for finding in findings if finding.error]
    if faults:
        count = "One fault was" if len(faults) == 1 else f"{len(faults)} faults were"
        first = faults[0]
        assert first.error is not None
        raise first.error(
            f"{count} found, the first of them:",
            where=f"{first.check}: {first.what}",
            remedy=first.remedy,
        )


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    tpu_files = sorted(each for part in _TPU_FILES for each in glob.glob(part))
    packages: dict[str, str] = {
        canonicalize_name(each.metadata["Name"]): each.version
        for each in metadata.distributions()
        if each.metadata["Name"]
    }
    yield check_python(platform.python_version())
    yield from check_packages(packages, has_tpu=bool(tpu_files))
    yield from check_environment(dict(os.environ), arguments.tpu)
    if tpu_files or arguments.tpu == "local":
        yield check_tpu_files(tpu_files)
        yield check_tpu_lock(_TPU_LOCK)
    yield from (check_folder(each) for each in arguments.folder if not is_remote(each))
    remote = [each for each in arguments.folder if is_remote(each)]
    request = {"tpu": arguments.tpu, "folders": remote, "data": arguments.data}
    yield from probe_findings(request, arguments.timeout_seconds)


def pinned_versions() -> dict[str, str]:
    """Returns the versions that `.ci/lock` writes into the package, by canonical name."""
    lines = Path(__file__).with_name("tested-versions.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier).lstrip("=") for pin in pins}


def check_python(version: str) -> Finding:
    """Checks the version of Python."""
    # A build of CPython's main branch calls itself `3.13.0+`.
    if _PYTHON.contains(version.rstrip("+"), prereleases=True):
        return Finding("Python", version)
    remedy = "python3.11 -m venv txl-environment, and install into that"
    return Finding("Python", f"{version} is not {_PYTHON}", remedy, MismatchError)


def check_packages(packages: dict[str, str], has_tpu: bool) -> Iterator[Finding]:
    """Compares the installed packages, versions by canonical name, with the tested ones."""
    tested = pinned_versions()
    builds = [build for build in _BUILDS if build in packages]
    wanted = _TPU_BUILD if has_tpu or _TPU_BUILD in builds else "tensorflow"
    install = f"pip install --no-deps {wanted}=={tested['tensorflow']}"
    if builds and builds != [wanted]:
        what = f"there is {' and '.join(builds)}; this machine needs {wanted} alone"
        remedy = f"pip uninstall -y {' '.join(builds)} && {install}"
        yield Finding("TensorFlow build", what, remedy, MismatchError)
    # Every build counts as `tensorflow`; only the TPU build comes with `libtpu`.
    installed = {**packages, **({"tensorflow": packages[builds[0]]} if builds else {})}
    expected = {name: pin for name, pin in tested.items() if name != "libtpu"}
    if wanted == _TPU_BUILD:
        expected["libtpu"] = tested["libtpu"]
    for name, pin in expected.items():
        version = installed.get(name)
        if version == pin:
            continue
        remedy = install if name == "tensorflow" else f"pip install --no-deps {name}=={pin}"
        if version is None:
            yield Finding(name, "it is not installed", remedy, MismatchError)
            continue
        what, is_fault = f"{version}; tested was {pin}", False
        if name in _CORE_RANGES:
            is_fault = not _CORE_RANGES[name].contains(_version(version), prereleases=True)
        elif name == "libtpu" and _version(version) > _version(pin):
            what, is_fault = f"{version} ends the process when {_TPU_BUILD} loads it", True
        yield Finding(name, what, remedy, MismatchError if is_fault else None)
    yield Finding("packages", f"{len(expected)} compared with the tested versions")


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def check_environment(environment: dict[str, str], tpu: str | None) -> Iterator[Finding]:
    """Checks the environment variables that change the work of TensorFlow and Keras."""
    backend = environment.get("KERAS_BACKEND", "tensorflow")
    library = environment.get("TPU_LIBRARY_PATH")
    faults = {
        "KERAS_BACKEND": backend != "tensorflow" and f"is {backend}; the jobs need tensorflow",
        "TF_USE_LEGACY_KERAS": environment.get("TF_USE_LEGACY_KERAS", "") not in ("", "0", "False")
        and "turns on Keras 2",
        "TPU_LOAD_LIBRARY": tpu == "local"
        and environment.get("TPU_LOAD_LIBRARY") == "0"
        and "is 0, so that no TPU is looked for",
        "TPU_LIBRARY_PATH": library and not os.path.isfile(library) and f"names no file: {library}",
    }
    for name, what in faults.items():
        if what:
            yield Finding(name, str(what), f"unset {name}", MismatchError)
    for name in ("TF_XLA_FLAGS", "XLA_FLAGS"):
        if environment.get(name):
            what = f"changes how programs are compiled: {environment[name][:80]}"
            yield Finding(name, what, f"unset {name}")
    if environment.get("TF_CONFIG"):
        what = "names several workers; the checks are of this machine alone"
        yield Finding("TF_CONFIG", what, "unset TF_CONFIG, if this is no worker")


def check_tpu_files(tpu_files: list[str]) -> Finding:
    """Checks whether the machine has TPU chips."""
    if tpu_files:
        return Finding("TPU chips", ", ".join(tpu_files))
    what, remedy = "neither /dev/accel* nor /dev/vfio has any", "txl launch prints how to get some"
    return Finding("TPU chips", what, remedy, InputMissingError)


def check_tpu_lock(path: str) -> Finding:
    """Checks whether another process has the TPU, without taking its lock file."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return Finding("TPU lock", "nobody holds the TPU")
    except OSError as error:
        what = f"{path} is left of another user: {error.strerror}"
        return Finding("TPU lock", what, f"sudo rm {path}", OutputExistsError)
    try:
        question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
    finally:
        os.close(descriptor)
    kind, _, _, _, owner = struct.unpack(_FLOCK, answer)
    if kind == fcntl.F_UNLCK:
        return Finding("TPU lock", f"nobody holds the TPU; {path} is left of an earlier process")
    return Finding("TPU lock", f"process {owner} has the TPU", f"kill {owner}", OutputExistsError)


def check_folder(folder: str) -> Finding:
    """Writes, reads and removes a file in a folder, or in the existing folder above it."""
    check, existing = f"folder {folder}", folder
    if not is_remote(folder):
        path = Path(folder).absolute()
        existing = str(next(each for each in (path, *path.parents) if each.exists()))
    file = os.path.join(existing, f"txl-doctor-{secrets.token_hex(8)}")
    try:
        write_file(file, _CONTENT)
        is_whole = read_file(file) == _CONTENT
        remove_file(file)
    except (OSError, ValueError, NotImplementedError) as error:
        return Finding(check, first_line(error), "Check path and permissions.", StorageError)
    if not is_whole:
        what = "the content of a file is not what was written"
        return Finding(check, what, "Use another folder.", StorageError)
    if is_remote(folder):
        return Finding(check, "written, read and removed")
    free_bytes = shutil.disk_usage(existing).free
    room = f"{free_bytes / (1 << 30):.1f} GiB free"
    if free_bytes >= _GOOD_BYTES:
        return Finding(check, f"written, read and removed; {room}")
    error_kind = StorageError if free_bytes < _LEAST_BYTES else None
    return Finding(check, f"only {room}", f"df -h {existing}, and remove something", error_kind)


def _import() -> list[Finding]:
    import keras
    import tensorflow as tf

    backend = keras.backend.backend()
    return [Finding("import", f"TensorFlow {tf.__version__}, Keras {keras.__version__}, {backend}")]


def _text() -> list[Finding]:
    import tensorflow_text

    # The library of the operations is loaded separately from the module.
    tensorflow_text.WhitespaceTokenizer().tokenize(["two words"])
    return [Finding("text operations", "they are loaded and work")]


def _devices() -> list[Finding]:
    import tensorflow as tf

    kinds = [device.device_type for device in tf.config.list_physical_devices()]
    return [Finding("devices", ", ".join(f"{kinds.count(kind)} {kind}" for kind in {*kinds}))]


def _data(folder: str) -> Finding:
    from txl_tf.data.prepared_dataset import PreparedDataset

    try:
        manifest = PreparedDataset.open(folder).manifest
    except JobError as error:
        return Finding(f"data set {folder}", error.what, error.remedy or "-", type(error))
    tokens = sum(split.tokens for split in manifest.splits)
    return Finding(f"data set {folder}", f"{tokens:,} tokens, {manifest.tokenizer_kind}; verified")


def _all_reduce(tpu: str | None) -> list[Finding]:
    """Checks that an all-reduce gives every replica the sum of all numbers."""
    import tensorflow as tf

    from txl_tf.distribution.strategy import create_strategy

    kinds = {device.device_type for device in tf.config.list_physical_devices()}
    is_alone = tpu is None and not kinds & {"GPU", "TPU"}
    strategy = create_strategy(tpu, _NUM_CPU_REPLICAS if is_alone else 1)
    results = strategy.experimental_local_results(sum_of_replicas(strategy)())
    count, sums = strategy.num_replicas_in_sync, [float(value) for value in results]
    name, right = f"{type(strategy).__name__} of {count}", count * (count + 1) / 2
    if sums and all(value == right for value in sums):
        return [Finding("all-reduce", f"{name}: the sum is right")]
    what, remedy = f"{name} gives {sums}; right is {right}", "Restart or replace the machine."
    return [Finding("all-reduce", what, remedy, NonFiniteError)]


def sum_of_replicas(strategy: "tf.distribute.Strategy") -> Callable[[], Any]:
    """Returns a compiled function that adds up the numbers of all replicas, counted from 1."""
    import tensorflow as tf

    def add_up() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        number = tf.cast(context.replica_id_in_sync_group, tf.float32)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, number + 1.0)

    # Not a lambda: a TPU names its program after the function.
    def add_up_on_replicas() -> Any:
        return strategy.run(add_up)

    return tf.function(add_up_on_replicas, autograph=False)


# In this order: the CPU can be split only before TensorFlow's first operation.
_STAGES: dict[str, Callable[[dict[str, Any]], list[Finding]]] = {
    "import": lambda request: _import(),
    "devices": lambda request: _devices(),
    "all-reduce": lambda request: _all_reduce(request["tpu"]),
    "text operations": lambda request: _text(),
    "remote folders": lambda request: [check_folder(each) for each in request["folders"]],
    "data sets": lambda request: [_data(each) for each in request["data"]],
}


def probe() -> None:
    """Runs the stages of the request on the standard input; prints a line of JSON for each."""
    request = json.loads(sys.stdin.read())
    for stage, check in _STAGES.items():
        print(json.dumps({"stage": stage}), flush=True)
        try:
            found = check(request)
        # Every error becomes a finding.
        except Exception as error:
            what = f"{type(error).__name__}: {first_line(error)}"[:300]
            kind = type(error) if isinstance(error, JobError) else MismatchError
            found = [Finding(stage, what, "Mend the faults above, or install again.", kind)]
        values = [
            {**vars(each), "error": each.error.__name__ if each.error else None} for each in found
        ]
        print(json.dumps({"stage": stage, "findings": values}), flush=True)
        if stage == "import" and found[0].error:
            return


_PROBE = f"from {__name__} import probe; probe()"


def probe_findings(request: dict[str, Any], timeout_seconds: float) -> Iterator[Finding]:
    """Runs `probe` in another process and yields its findings; a crash or a hang becomes one."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    # The child imports the same copy of the code, and logs the errors that explain its end.
    environment["PYTHONPATH"] = os.pathsep.join(each or os.getcwd() for each in sys.path)
    environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
    command = [sys.executable, "-c", _PROBE]
    # Files keep the output of a killed process.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            code = subprocess.run(
                command,
                input=json.dumps(request).encode(),
                stdout=output,
                stderr=errors,
                timeout=timeout_seconds,
                env=environment,
                check=False,
            ).returncode
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            ended = f"the process ended with {ended}"
        except subprocess.TimeoutExpired:
            ended = "it hangs"
        for file in (output, errors):
            file.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
        said = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
    # Libraries print to the standard output too.
    answers = [json.loads(line) for line in lines if line.startswith('{"stage": ')]
    for answer in answers:
        for values in answer.get("findings", ()):
            error = values.pop("error")
            yield Finding(**values, error=error and getattr(job_errors, error))
    if not answers or "findings" not in answers[-1]:
        stage = answers[-1]["stage"] if answers else "import"
        # TensorFlow waits without limit for a TPU that does not answer.
        kind = InputMissingError if stage == "all-reduce" else MismatchError
        what = f"{ended}; it said last: {said[:200]}" if said else ended
        remedy = "Mend the faults above, or check that no other process has the TPU."
        yield Finding(stage, what, remedy, kind)
