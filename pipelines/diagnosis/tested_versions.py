"""The versions that the project was tested with."""

import dataclasses
from pathlib import Path
from typing import Self

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_FILE = Path(__file__).with_name("tested-versions.txt")
_LIBTPU = "libtpu"


@dataclasses.dataclass(frozen=True)
class TestedVersions:
    """Versions that `.ci/lock` writes into the package.

    Attributes:
        python: str. The range of Python, such as `>=3.11,<3.14`.
        packages: dict from canonical name to version; what every job needs.
        libtpu: str. Version of the TPU library.
    """

    __test__ = False  # no test, whatever its name

    python: str
    packages: dict[str, str]
    libtpu: str

    @classmethod
    def read(cls) -> Self:
        """Reads the versions that are part of the package.

        Returns:
            The `TestedVersions`.
        """
        lines = _FILE.read_text(encoding="utf-8").splitlines()
        pins = [Requirement(line) for line in lines if not line.startswith("#")]
        packages: dict[str, str] = {canonicalize_name(pin.name): _version(pin) for pin in pins}
        libtpu = packages.pop(_LIBTPU)
        return cls(python=">=3.11,<3.14", packages=packages, libtpu=libtpu)


def _version(pin: Requirement) -> str:
    (only,) = pin.specifier
    return only.version
