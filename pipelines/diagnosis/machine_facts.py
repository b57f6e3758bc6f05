"""What can be seen of a machine without starting TensorFlow."""

import dataclasses
import glob
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Self

from packaging.utils import canonicalize_name

# The older driver of the chips, and the one of v5p, v6e and later.
_TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
BUILDS = ("tensorflow", "tensorflow-tpu", "tensorflow-cpu", "tf-nightly", "tf-nightly-tpu")
"""The distributions that are TensorFlow; only one of them can be installed."""
_LIBRARY = "tensorflow/libtensorflow_cc.so.2"
_PRODUCT_FILE = Path("/sys/class/dmi/id/product_name")


@dataclasses.dataclass(frozen=True)
class MachineFacts:
    """The facts that checks judge; tests make up their own.

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
        """Looks at this machine.

        Returns:
            The `MachineFacts`.
        """
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
    """Tells by its size whose library was written last."""
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
