"""Checks of Python and package versions against the tested ones."""

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from . import Finding
from .machine_checks import BUILDS, MachineFacts

_FILE = Path(__file__).with_name("tested-versions.txt")
_LIBTPU = "libtpu"


@dataclasses.dataclass(frozen=True)
class TestedVersions:
    """Versions that `.ci/lock` writes into the package."""

    __test__ = False  # no test, whatever its name

    python: str
    """The range of Python, such as `>=3.11,<3.14`."""
    packages: dict[str, str]
    """Version by canonical name of the packages that every job needs."""
    libtpu: str
    """Version of the TPU library."""

    @classmethod
    def read(cls) -> Self:
        """Reads the versions that are part of the package."""
        lines = _FILE.read_text(encoding="utf-8").splitlines()
        pins = [Requirement(line) for line in lines if not line.startswith("#")]
        packages: dict[str, str] = {
            canonicalize_name(pin.name): specifier.version
            for pin in pins
            for specifier in pin.specifier
        }
        libtpu = packages.pop(_LIBTPU)
        return cls(python=">=3.11,<3.14", packages=packages, libtpu=libtpu)


_TPU_BUILD = "tensorflow-tpu"
# A version out of these ranges of pyproject.toml is a fault, any other difference a warning.
CORE_RANGES = {
    "keras": SpecifierSet(">=3.15.1,<4"),
    "tensorboard": SpecifierSet("~=2.20.0"),
    "tensorflow": SpecifierSet("~=2.20.0"),
    "tensorflow-text": SpecifierSet("~=2.20.0"),
}
"""The packages whose version decides whether and how anything runs."""
# The oldest protobuf that TensorFlow's own metadata allows.
_OLDEST_PROTOBUF = "5.28"


def check_python(facts: MachineFacts, tested: TestedVersions) -> Finding:
    """Checks the version of Python."""
    # A build of CPython's main branch calls itself `3.13.0+`.
    if SpecifierSet(tested.python).contains(facts.python.rstrip("+"), prereleases=True):
        return Finding.ok("Python", facts.python)
    return Finding.fault(
        "Python",
        f"{facts.python} is not {tested.python}",
        "python3.11 -m venv txl-environment, and install into that",
    )


def check_build(facts: MachineFacts, tested: TestedVersions) -> Finding:
    """Checks that there is one build of TensorFlow, whole, and the one for this machine."""
    builds = [build for build in BUILDS if build in facts.packages]
    wanted = _wanted_build(facts)
    install = _install_build(wanted, tested)
    if not builds:
        return Finding.fault("TensorFlow build", "it is not installed", install)
    problem = None
    if len(builds) > 1:
        last = facts.build_on_disk or "neither"
        problem = f"{' and '.join(builds)} share one folder; its files are of {last}"
    elif facts.build_on_disk != builds[0]:
        problem = f"files of another build lie over {builds[0]}"
    elif wanted == _TPU_BUILD and builds[0] != _TPU_BUILD:
        problem = f"there are TPU chips, which {builds[0]} cannot use"
    if problem is None:
        return Finding.ok("TensorFlow build", f"{builds[0]} {facts.packages[builds[0]]}")
    repair = f"pip uninstall -y {' '.join(builds)} && {install}"
    return Finding.fault("TensorFlow build", problem, repair)


def check_libtpu(facts: MachineFacts, tested: TestedVersions) -> Finding | None:
    """Checks the library that tensorflow-tpu loads; nothing to say without that."""
    if _TPU_BUILD not in facts.packages:
        return None
    install = f"pip install --no-deps libtpu=={tested.libtpu}"
    version = facts.packages.get("libtpu")
    if version is None:
        return Finding.fault("libtpu", "tensorflow-tpu needs it and it is not installed", install)
    if _version(version) > Version(tested.libtpu):
        what = f"{version} ends the process when tensorflow-tpu loads it"
        return Finding.fault("libtpu", what, install)
    if _version(version) < Version(tested.libtpu):
        return Finding.warning("libtpu", f"{version}; tested was {tested.libtpu}", install)
    return Finding.ok("libtpu", version)


def check_core_packages(facts: MachineFacts, tested: TestedVersions) -> list[Finding]:
    """Checks the packages of `CORE_RANGES`."""
    installed = _with_tensorflow(facts.packages)
    findings = []
    for name, allowed in CORE_RANGES.items():
        wanted, version = tested.packages[name], installed.get(name)
        if name == "tensorflow" and version is None:
            continue  # another check has said so
        if version == wanted:
            findings.append(Finding.ok(name, wanted))
            continue
        reason = _reason(name, version)
        what = "it is not installed" if version is None else f"{version}; tested was {wanted}"
        is_allowed = version is not None and allowed.contains(_version(version), prereleases=True)
        kind = Finding.warning if is_allowed else Finding.fault
        findings.append(kind(name, what + reason, _install(name, wanted, facts)))
    return findings


def check_other_packages(facts: MachineFacts, tested: TestedVersions) -> Finding:
    """Checks everything else that is pinned."""
    others = {name: pin for name, pin in tested.packages.items() if name not in CORE_RANGES}
    installed = {name: facts.packages.get(name) for name in others}
    missing = [name for name in others if installed[name] is None]
    wrong = [name for name in others if installed[name] not in (None, others[name])]
    pins = [f"{name}=={others[name]}" for name in (*missing, *wrong)]
    install = f"pip install --no-deps {' '.join(pins)}"
    if missing:
        return Finding.fault("other packages", f"not installed: {', '.join(missing)}", install)
    if _version(installed["protobuf"] or _OLDEST_PROTOBUF) < Version(_OLDEST_PROTOBUF):
        what = f"protobuf {installed['protobuf']} is older than {_OLDEST_PROTOBUF}"
        return Finding.fault("other packages", f"{what}, which TensorFlow needs", install)
    if wrong:
        shown = ", ".join(f"{name} {installed[name]} for {others[name]}" for name in wrong)
        return Finding.warning("other packages", f"other versions than tested: {shown}", install)
    return Finding.ok("other packages", f"{len(others)} as tested")


def tpu_install_command(tested: TestedVersions) -> str:
    """Returns the command that installs TensorFlow for TPUs."""
    return _install_build(_TPU_BUILD, tested)


def _wanted_build(facts: MachineFacts) -> str:
    return _TPU_BUILD if _TPU_BUILD in facts.packages or facts.tpu_files else "tensorflow"


def _install_build(build: str, tested: TestedVersions) -> str:
    packages = [f"{build}=={tested.packages['tensorflow']}"]
    if build == _TPU_BUILD:
        packages.append(f"libtpu=={tested.libtpu}")
    return f"pip install --no-deps {' '.join(packages)}"


def _with_tensorflow(packages: Mapping[str, str]) -> dict[str, str]:
    """Adds the installed build of TensorFlow under the name `tensorflow`."""
    found = [packages[build] for build in BUILDS if build in packages]
    return {**packages, **({"tensorflow": found[0]} if found else {})}


def _install(name: str, wanted: str, facts: MachineFacts) -> str:
    if name == "tensorflow":
        name = _TPU_BUILD if _TPU_BUILD in facts.packages else name
    # tensorflow-text asks for the build `tensorflow` and would put it over any other.
    return f"pip install --no-deps {shlex.quote(f'{name}=={wanted}')}"


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")  # older than any that was tested


def _reason(name: str, version: str | None) -> str:
    if name == "tensorboard" and version is None:
        return " (TensorFlow 2.21 no longer brings it)"
    if name == "tensorflow-text" and version == "2.21.0":
        return "; this release cannot be imported"
    return ""
