"""Diagnosis of an installation with a remedy for each problem: `txl doctor`.

    txl doctor
    txl doctor --folder runs
    txl doctor --tpu local --folder gs://BUCKET/runs

TensorFlow runs in another process, so that a crash or a hang becomes a finding. The exit code is
0 without a fault (there may be warnings), else the code of the first fault, which often causes
the others: 78 versions or settings, 66 no TPU, 74 a folder, 70 a wrong sum on the devices.
"""

import argparse
import dataclasses
import functools
import glob
import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from txl_tf.errors import (
    InputMissingError,
    JobError,
    MismatchError,
    NonFiniteError,
    StorageError,
    UsageError,
)
from txl_tf.storage.files import first_line, is_remote, read_file, remove_file, write_file

from .arguments import add_json_argument, add_number, add_tpu_argument

if TYPE_CHECKING:
    # The probe imports it in its own stage.
    import tensorflow as tf

_TPU_BUILD = "tensorflow-tpu"
_BUILDS = ("tensorflow", _TPU_BUILD, "tensorflow-cpu", "tf-nightly", "tf-nightly-tpu")
# Device files of the older TPU driver, and of v5p, v6e and later.
_TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
# Environment variables that change the work of TensorFlow and Keras, with their usual value.
_VARIABLES = {
    "KERAS_BACKEND": "tensorflow",
    "TF_USE_LEGACY_KERAS": "0",
    "TPU_LOAD_LIBRARY": None,
    "TPU_LIBRARY_PATH": None,
    "TF_XLA_FLAGS": None,
    "XLA_FLAGS": None,
    "TF_CONFIG": None,
}
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
    """How to repair the problem; empty without a problem."""
    exit_code: int = 0
    """Exit code for a fault; 0 for warnings and good findings."""

    @property
    def status(self) -> str:
        """`ok`, `warning` or `fault`; after a fault, a job fails or computes wrong numbers."""
        return "fault" if self.exit_code else "warning" if self.remedy else "ok"

    def describe(self) -> str:
        """Formats the finding in one line, and its remedy in a second."""
        line = f"{self.status:<8} {self.check}: {self.what}"
        return f"{line}\n{' ' * 9}{self.remedy}" if self.remedy else line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_tpu_argument(parser, "check this TPU (default: the devices of this machine)")
    meaning = "check that a job can write here; may be repeated"
    parser.add_argument("--folder", metavar="PATH", action="append", default=[], help=meaning)
    meaning = "seconds that TensorFlow may take for its checks"
    add_number(parser, "--timeout-seconds", 1e-3, 86_400.0, meaning, default=300.0, metavar="S")
    add_json_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuses empty paths."""
    if "" in arguments.folder:
        raise UsageError("--folder must not be empty.", where="--folder")


def run(arguments: argparse.Namespace) -> None:
    """Runs the checks, and prints each finding at once."""
    findings = []
    for finding in _findings(arguments):
        findings.append(finding)
        if not arguments.json:
            print(finding.describe(), flush=True)
    if arguments.json:
        values = [{**dataclasses.asdict(each), "status": each.status} for each in findings]
        print(json.dumps(values, indent=2))
    if faults := [finding for finding in findings if finding.exit_code]:
        first = faults[0]
        what, where = f"Number of faults: {len(faults)}. The first:", f"{first.check}: {first.what}"
        error = JobError(what, where=where, remedy=first.remedy)
        error.exit_code = first.exit_code
        raise error


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    tpu_files = sorted(each for part in _TPU_FILES for each in glob.glob(part))
    packages: dict[str, str] = {
        canonicalize_name(each.metadata["Name"]): each.version
        for each in metadata.distributions()
        if each.metadata["Name"]
    }
    yield from check_packages(packages, has_tpu=bool(tpu_files))
    for name, usual in _VARIABLES.items():
        if (value := os.environ.get(name)) not in (None, "", usual):
            exit_code = MismatchError.exit_code if name == "KERAS_BACKEND" else 0
            yield Finding(name, f"set to {value[:80]}", f"unset {name}", exit_code)
    if tpu_files:
        yield Finding("TPU chips", ", ".join(tpu_files))
    elif arguments.tpu == "local":
        what, remedy = "none in /dev/accel* and /dev/vfio", "get a TPU: see txl launch --help"
        yield Finding("TPU chips", what, remedy, InputMissingError.exit_code)
    yield from (check_folder(each) for each in arguments.folder if not is_remote(each))
    remote = [each for each in arguments.folder if is_remote(each)]
    request = {"tpu": arguments.tpu, "folders": remote}
    yield from probe_findings(request, arguments.timeout_seconds)


def pinned_versions() -> dict[str, str]:
    """Returns the versions that `.ci/lock` writes into the package, by canonical name."""
    lines = Path(__file__).with_name("tested-versions.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier).lstrip("=") for pin in pins}


def check_packages(packages: dict[str, str], has_tpu: bool) -> Iterator[Finding]:
    """Compares the installed packages, versions by canonical name, with the tested ones.

    Faults: a wrong build, no package, a version `pyproject.toml` forbids. Others are warnings.
    """
    tested = pinned_versions()
    required = map(Requirement, metadata.requires("txl-tf") or ())
    ranges = {
        str(canonicalize_name(each.name)): each.specifier for each in required if not each.marker
    }
    builds = [build for build in _BUILDS if build in packages]
    wanted = _TPU_BUILD if has_tpu or _TPU_BUILD in builds else "tensorflow"
    install = f"pip install --no-deps {wanted}=={tested['tensorflow']}"
    if builds and builds != [wanted]:
        what = f"installed: {' and '.join(builds)}; this machine needs {wanted} alone"
        remedy = f"pip uninstall -y {' '.join(builds)} && {install}"
        yield Finding("TensorFlow build", what, remedy, MismatchError.exit_code)
    # Every build counts as `tensorflow`; only the TPU build comes with `libtpu`.
    installed = {**packages, **({"tensorflow": packages[builds[0]]} if builds else {})}
    for name, pin in tested.items():
        version = installed.get(name)
        if version == pin or (name == "libtpu" and wanted != _TPU_BUILD):
            continue
        remedy = install if name == "tensorflow" else f"pip install --no-deps {name}=={pin}"
        if version is None:
            yield Finding(name, "not installed", remedy, MismatchError.exit_code)
            continue
        accepted = ranges.get(name)
        is_fault = accepted is not None and not accepted.contains(version, prereleases=True)
        exit_code = MismatchError.exit_code if is_fault else 0
        yield Finding(name, f"{version}; the tested version is {pin}", remedy, exit_code)
    what = f"Python {platform.python_version()}, {len(tested)} packages compared with tested ones"
    yield Finding("packages", what)


def check_folder(folder: str) -> Finding:
    """Tries a file in a folder, or the existing one above it, and judges the free space."""
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
        remedy = "Check the path and the permissions."
        return Finding(check, first_line(error), remedy, StorageError.exit_code)
    if not is_whole:
        what = "a file that was written has other content when read"
        return Finding(check, what, "Use another folder.", StorageError.exit_code)
    if is_remote(folder):
        return Finding(check, "written, read and removed")
    free_bytes = shutil.disk_usage(existing).free
    room = f"{free_bytes / (1 << 30):.1f} GiB free"
    if free_bytes >= _GOOD_BYTES:
        return Finding(check, f"written, read and removed; {room}")
    exit_code = StorageError.exit_code if free_bytes < _LEAST_BYTES else 0
    return Finding(check, f"only {room}", f"df -h {existing}, and remove something", exit_code)


def _import() -> Finding:
    import keras
    import tensorflow as tf

    kinds = [device.device_type for device in tf.config.list_physical_devices()]
    devices = ", ".join(f"{kinds.count(kind)} {kind}" for kind in {*kinds})
    what = f"TensorFlow {tf.__version__} with {devices}, Keras {keras.__version__}"
    return Finding("import", what)


def _text() -> Finding:
    import tensorflow_text

    # The library of the operations is loaded separately from the module.
    tensorflow_text.WhitespaceTokenizer().tokenize(["two words"])
    return Finding("text operations", "they are loaded and work")


def _all_reduce(tpu: str | None) -> Finding:
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
        return Finding("all-reduce", f"{name}: the sum is right")
    what, remedy = f"{name} gives {sums}; right is {right}", "Restart or replace the machine."
    return Finding("all-reduce", what, remedy, NonFiniteError.exit_code)


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


def probe() -> None:
    """Runs the stages of the request on the standard input; prints lines of JSON for each."""
    request = json.loads(sys.stdin.read())
    # All-reduce splits the CPU, which is possible only before the first operation.
    stages: list[tuple[str, Callable[[], Finding]]] = [
        ("import", _import),
        ("all-reduce", lambda: _all_reduce(request["tpu"])),
        ("text operations", _text),
        *(("folder", functools.partial(check_folder, each)) for each in request["folders"]),
    ]
    for stage, check in stages:
        print(json.dumps({"stage": stage}), flush=True)
        try:
            found = check()
        # Every error becomes a finding.
        except Exception as error:
            what = f"{type(error).__name__}: {first_line(error)}"[:300]
            kind = error if isinstance(error, JobError) else MismatchError
            remedy = getattr(error, "remedy", "") or "Fix any fault above, or install again."
            found = Finding(stage, what, remedy, kind.exit_code)
        print(json.dumps({"stage": stage, "finding": vars(found)}), flush=True)
        if stage == "import" and found.exit_code:
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
            ended = f"no answer within {timeout_seconds:g} seconds"
        for file in (output, errors):
            file.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
        last_line = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
    # Libraries print to the standard output too.
    answers = [json.loads(line) for line in lines if line.startswith('{"stage": ')]
    for values in (answer["finding"] for answer in answers if "finding" in answer):
        yield Finding(**values)
    if not answers or "finding" not in answers[-1]:
        stage = answers[-1]["stage"] if answers else "import"
        # TensorFlow waits without limit for a TPU that does not answer.
        kind = InputMissingError if stage == "all-reduce" else MismatchError
        what = f"{ended}; last line printed: {last_line[:200]}" if last_line else ended
        remedy = "Fix any fault above, or check that no other process uses the TPU."
        yield Finding(stage, what, remedy, kind.exit_code)
