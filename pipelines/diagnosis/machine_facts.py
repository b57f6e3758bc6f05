"""Facts about the machine: TPU devices, the metadata server, how it is reached."""

import dataclasses
import email.utils
import glob
import http.client
import os
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Self

from packaging.utils import canonicalize_name

from pipelines.diagnosis.finding import Finding

# The older driver of the chips, and the one of v5p, v6e and later.
_TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
BUILDS = ("tensorflow", "tensorflow-tpu", "tensorflow-cpu", "tf-nightly", "tf-nightly-tpu")
"""The distributions that are TensorFlow; only one of them can be installed."""
_LIBRARY = "tensorflow/libtensorflow_cc.so.2"
_PRODUCT_FILE = Path("/sys/class/dmi/id/product_name")


@dataclasses.dataclass(frozen=True)
class MachineFacts:
    """Facts about a machine on which the checks decide; tests construct their own.

    Attributes:
        python: str. Version of Python.
        packages: mapping from canonical name to version of what is installed.
        environment: mapping. The environment variables.
        build_on_disk: optional str. Which of `BUILDS` the library on the disk
            is of; `None` if of none that is installed.
        tpu_files: tuple of str. The devices that look like TPU chips.
        lock_file: path. What processes with a TPU lock against each other.
        keras_settings: path. Keras' own file of settings.
        is_google_machine: bool. Whether this is a machine of Google Cloud.
    """

    python: str = ""
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    build_on_disk: str | None = None
    tpu_files: tuple[str, ...] = ()
    lock_file: Path = Path("/tmp/libtpu_lockfile")
    keras_settings: Path = Path("keras.json")
    is_google_machine: bool = False

    @classmethod
    def collect(cls) -> Self:
        """Looks at this machine."""
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


_HOST_VARIABLE = "GCE_METADATA_HOST"
_HOST = "169.254.169.254"
_HEADERS = {"Metadata-Flavor": "Google"}
_TIMEOUT_SECONDS = 3.0
# Access tokens are refused by a clock that is further off than some minutes.
_LARGEST_SKEW_SECONDS = 60.0


def check_metadata(facts: MachineFacts) -> Finding | None:
    """Asks the metadata server, which gives access to `gs://` and tells of preemption.

    Args:
        facts: `MachineFacts`; `GCE_METADATA_HOST` of its environment names
            another server.

    Returns:
        The `Finding`; `None` on a machine that is not of Google Cloud.
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
