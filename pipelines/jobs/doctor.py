"""Diagnosis of an installation with a remedy for each problem: `txl doctor`.

    txl doctor
    txl doctor --tpu local --folder gs://BUCKET/runs

TensorFlow runs in another process, so that a crash or a hang becomes a finding. The exit code is
0 without a fault (there may be warnings), else the code of the first fault, which often causes
the others: 78 versions or settings, 66 no TPU, 74 a folder, 70 a wrong sum on the devices.
"""

import argparse
import os
import platform
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from txl_tf.errors import (
    InputMissingError,
    JobError,
    MismatchError,
    NonFiniteError,
    StorageError,
    UsageError,
    first_line,
)
from txl_tf.imports import is_on_jax, jax
from txl_tf.storage.files import is_remote, read_file, remove_file, write_file

from ..shell.arguments import add_tpu_argument
from ..shell.exit_codes import one_line
from ..shell.tensorflow_import import load_tensorflow

if TYPE_CHECKING:
    import tensorflow as tf

_TPU_BUILD = "tensorflow-tpu"
_BUILDS = ("tensorflow", _TPU_BUILD, "tensorflow-cpu", "tf-nightly", "tf-nightly-tpu")
# Environment variables that change the work of TensorFlow and Keras, with their usual values.
_VARIABLES: dict[str, tuple[str, ...]] = {
    "KERAS_BACKEND": ("tensorflow", "jax"),
    "TF_USE_LEGACY_KERAS": ("0",),
    "TPU_LOAD_LIBRARY": (),
    "TPU_LIBRARY_PATH": (),
    "TF_XLA_FLAGS": (),
    "XLA_FLAGS": (),
    "TF_CONFIG": (),
}
_CONTENT = b"txl doctor was here\n" * 100
# Two replicas suffice to check a sum.
_NUM_CPU_REPLICAS = 2


class Finding(NamedTuple):
    """Result of one check."""

    check: str
    what: str
    remedy: str = ""
    """How to repair the problem; empty without a problem."""
    exit_code: int = 0
    """Exit code for a fault, after which a job fails or computes wrong numbers; otherwise 0."""

    def __str__(self) -> str:
        status = "fault" if self.exit_code else "warning" if self.remedy else "ok"
        line = f"{status:<8} {self.check}: {self.what}"
        return f"{line}\n{' ' * 9}{self.remedy}" if self.remedy else line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_tpu_argument(parser, "check this TPU (default: the devices of this machine)")
    parser.add_argument(
        "--folder",
        metavar="PATH",
        action="append",
        default=[],
        help="check that a job can write here; may be repeated",
    )


def check_arguments(arguments: argparse.Namespace) -> argparse.Namespace:
    """Raises UsageError for an empty path."""
    if "" in arguments.folder:
        raise UsageError("--folder must not be empty.", where="--folder")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Runs the checks, and prints each finding at once."""
    faults = []
    for finding in _findings(arguments):
        print(finding, flush=True)
        if finding.exit_code:
            faults.append(finding)
    if faults:
        first = faults[0]
        what, where = f"Number of faults: {len(faults)}. The first:", f"{first.check}: {first.what}"
        error = JobError(what, where=where, remedy=first.remedy)
        error.exit_code = first.exit_code
        raise error


def _findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    packages: dict[str, str] = {
        canonicalize_name(each.metadata["Name"]): each.version
        for each in metadata.distributions()
        if each.metadata["Name"]
    }
    yield from check_packages(packages, has_tpu=arguments.tpu == "local")
    for name, usual in _VARIABLES.items():
        if (value := os.environ.get(name, "")) not in ("", *usual):
            exit_code = MismatchError.exit_code if name == "KERAS_BACKEND" else 0
            yield Finding(name, f"set to {value[:80]}", f"unset {name}", exit_code)
    yield from map(check_folder, arguments.folder)
    yield check_devices(arguments.tpu)


def pinned_versions() -> dict[str, str]:
    """Returns the versions that `.ci/lock` writes into the package, by canonical name."""
    lines = Path(__file__).with_name("tested-versions.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier).lstrip("=") for pin in pins}


def check_packages(packages: dict[str, str], has_tpu: bool) -> Iterator[Finding]:
    """Compares the installed packages, versions by canonical name, with the tested ones.

    Faults: a wrong build, no package, a version `pyproject.toml` forbids. Others are warnings.
    """
    pins = pinned_versions()
    requirements = map(Requirement, metadata.requires("txl-tf") or ())
    ranges = {
        str(canonicalize_name(each.name)): each.specifier
        for each in requirements
        if not each.marker
    }
    builds = [build for build in _BUILDS if build in packages]
    needed_build = _TPU_BUILD if has_tpu or _TPU_BUILD in builds else "tensorflow"
    install = f"pip install --no-deps {needed_build}=={pins['tensorflow']}"
    if builds and builds != [needed_build]:
        yield Finding(
            "TensorFlow build",
            f"installed: {' and '.join(builds)}; this machine needs {needed_build} alone",
            f"pip uninstall -y {' '.join(builds)} && {install}",
            MismatchError.exit_code,
        )
    # Every build counts as `tensorflow`; only the TPU build comes with `libtpu`.
    versions = {**packages, **({"tensorflow": packages[builds[0]]} if builds else {})}
    for name, pin in pins.items():
        version = versions.get(name)
        if version == pin or (name == "libtpu" and needed_build != _TPU_BUILD):
            continue
        remedy = install if name == "tensorflow" else f"pip install --no-deps {name}=={pin}"
        specifier = ranges.get(name)
        is_fault = version is None or (
            specifier is not None and not specifier.contains(version, prereleases=True)
        )
        exit_code = MismatchError.exit_code if is_fault else 0
        what = f"{version}; the tested version is {pin}" if version else "not installed"
        yield Finding(name, what, remedy, exit_code)
    yield Finding(
        "packages",
        f"Python {platform.python_version()}, {len(pins)} packages compared with tested ones",
    )


def check_folder(folder: str) -> Finding:
    """Writes, reads and removes a file in a folder, or in the existing one above it."""
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
        return Finding(
            check,
            first_line(error),
            "Check the path, the permissions and the room.",
            StorageError.exit_code,
        )
    if is_whole:
        return Finding(check, "written, read and removed")
    return Finding(
        check,
        "a file that was written has other content when read",
        "Use another folder.",
        StorageError.exit_code,
    )


_PROBE = f"from {__name__} import probe; import sys; probe(sys.argv[1] or None)"
_TIMEOUT_SECONDS = 300.0


def check_devices(tpu: str | None) -> Finding:
    """Runs `probe` in another process; an error, a crash or a hang becomes a finding."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    # The child imports the same copy of the code, and logs the errors that explain its end.
    environment["PYTHONPATH"] = os.pathsep.join(each or os.getcwd() for each in sys.path)
    environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
    command = [sys.executable, "-c", _PROBE, tpu or ""]
    remedy = "Fix any fault above, or check that no other process uses the TPU."
    try:
        process = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        # TensorFlow waits without limit for a TPU that does not answer.
        what = f"no answer within {_TIMEOUT_SECONDS:g} seconds"
        return Finding("TensorFlow", what, remedy, InputMissingError.exit_code)
    code = process.returncode
    output = process.stderr if code else process.stdout
    last_line = one_line(output.decode(errors="replace").strip().rpartition("\n")[2])
    if code == 0:
        return Finding("TensorFlow", last_line)
    ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    exit_code = code if code in _PROBE_CODES else MismatchError.exit_code
    return Finding("TensorFlow", f"ended with {ending}: {last_line}", remedy, exit_code)


_PROBE_CODES = (InputMissingError.exit_code, NonFiniteError.exit_code)


def probe(tpu: str | None) -> None:
    """Imports the libraries, loads the text operations, and adds up over the devices.

    Prints a line, or exits with the code of the error.
    """
    if is_on_jax():
        # TensorFlow takes no device, as in the jobs.
        os.environ["TPU_LOAD_LIBRARY"] = "0"
        load_tensorflow("doctor")
    import keras
    import tensorflow as tf
    import tensorflow_text

    from txl_tf.distribution.mesh_strategy import MeshStrategy
    from txl_tf.distribution.strategy import create_strategy

    # 1. The devices: a CPU alone is split into two, for a sum to check.
    kinds = [device.device_type for device in tf.config.list_physical_devices()]
    is_alone = tpu is None and not {*kinds} & {"GPU", "TPU"}
    try:
        is_split = is_alone and not is_on_jax()
        strategy: Any = create_strategy(tpu, _NUM_CPU_REPLICAS if is_split else 1)
    except JobError as error:
        print(f"{error.what} {error.remedy}", file=sys.stderr)
        sys.exit(error.exit_code)
    # 2. Replicas add up their numbers 1 to N, which gives N (N + 1) / 2 on each.
    count, backend = strategy.num_replicas_in_sync, f"Keras {keras.__version__}"
    if isinstance(strategy, MeshStrategy):
        numbers = strategy.divided(np.arange(1, count + 1, dtype=np.float32))
        add_up = jax.jit(jax.numpy.sum, out_shardings=strategy.sharding(is_by_row=False))
        results = [each.data for each in add_up(numbers).addressable_shards]
        backend += f" on JAX {jax.__version__} with {count} {strategy.kind}"
    else:
        results = strategy.experimental_local_results(sum_of_replicas(strategy)())
    sums = [float(value) for value in results]
    right = count * (count + 1) / 2
    if not sums or any(value != right for value in sums):
        print(f"a sum over {count} replicas gives {sums}; right is {right}", file=sys.stderr)
        sys.exit(NonFiniteError.exit_code)
    # 3. Text operations, whose library is loaded separately from the module.
    tensorflow_text.WhitespaceTokenizer().tokenize(["two words"])
    devices = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted({*kinds}))
    print(
        f"TensorFlow {tf.__version__} with {devices}, {backend}; "
        f"sums of {count} replicas are right, text operations work"
    )


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
