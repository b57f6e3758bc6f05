"""The versions that the project was tested with, from its own metadata."""

import dataclasses
import re
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from pipelines.diagnosis.version_number import canonical
from txl_tf.errors import MismatchError

_PROJECT = "txl-tf"
_PIN = re.compile(r"([A-Za-z0-9._-]+)\s*==\s*([^\s;]+)\s*(;.*)?")
# The extra whose libtpu is the one for tensorflow-tpu as well.
_TPU_EXTRA = "tpu-compile"
_SOURCE = Path(__file__).resolve().parents[2] / "pyproject.toml"


@dataclasses.dataclass(frozen=True)
class TestedVersions:
    """What `pyproject.toml` pins.

    Attributes:
        python: str. The range of Python, such as `>=3.11,<3.14`.
        packages: dict from canonical name to version; what every job needs.
        libtpu: str. Version of the TPU library.
    """

    __test__ = False  # the name is no test's

    python: str
    packages: dict[str, str]
    libtpu: str

    @classmethod
    def read(cls, source: Path = _SOURCE) -> Self:
        """Reads the pins of the source that runs, or else of the installed package.

        Args:
            source: path of the `pyproject.toml` beside the running code.

        Returns:
            The `TestedVersions`.

        Raises:
            MismatchError: If the package has neither.
        """
        if source.is_file():
            project = tomllib.loads(source.read_text(encoding="utf-8")).get("project", {})
            if project.get("name") == _PROJECT:
                return cls._from_source(project)
        try:
            found = metadata.distribution(_PROJECT)
        except metadata.PackageNotFoundError as error:
            raise MismatchError(
                "This copy of the code does not say which versions it was tested with.",
                where=str(source),
                remedy="Install it: pip install .",
            ) from error
        lines = found.requires or []
        is_extra = [f"extra == '{_TPU_EXTRA}'" in line.replace('"', "'") for line in lines]
        return cls(
            python=found.metadata["Requires-Python"] or "",
            packages=_pins([line for line in lines if "extra ==" not in line]),
            libtpu=_pins([line for line, extra in zip(lines, is_extra, strict=True) if extra])[
                "libtpu"
            ],
        )

    @classmethod
    def _from_source(cls, project: dict[str, Any]) -> Self:
        return cls(
            python=project["requires-python"],
            packages=_pins(project["dependencies"]),
            libtpu=_pins(project["optional-dependencies"][_TPU_EXTRA])["libtpu"],
        )


def _pins(requirements: Sequence[str]) -> dict[str, str]:
    matches = [_PIN.fullmatch(requirement.strip()) for requirement in requirements]
    return {canonical(matched[1]): matched[2] for matched in matches if matched}
