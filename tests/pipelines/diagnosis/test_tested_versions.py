"""The files that name exact versions agree, and fit pyproject.toml."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipelines.diagnosis.tested_versions import TestedVersions
from pipelines.diagnosis.version_checks import CORE_RANGES

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {
    name: [Requirement(line) for line in lines]
    for name, lines in PROJECT["optional-dependencies"].items()
}


def constraints():
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def test_the_versions_in_the_package_are_the_constraints():
    tested = TestedVersions.read()
    pins = constraints()

    assert tested.packages.items() <= pins.items()
    assert tested.libtpu == pins["libtpu"]
    assert {canonicalize_name(each.name) for each in DEPENDENCIES} <= set(tested.packages)
    assert tested.python == PROJECT["requires-python"]


def test_the_constraints_are_within_the_ranges_of_all_extras():
    pins = constraints()
    requirements = [*DEPENDENCIES, *(each for extra in EXTRAS.values() for each in extra)]

    for requirement in requirements:
        if requirement.name != PROJECT["name"]:
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_the_tests_are_run_with_the_extras_that_need_no_compiler():
    (own,) = [each for each in EXTRAS["test"] if each.name == PROJECT["name"]]

    assert own.extras == set(EXTRAS) - {"test", "tpu-compile"}


def test_the_doctor_faults_what_pip_would():
    ranges = {each.name: each.specifier for each in DEPENDENCIES}

    assert {name: ranges[name] for name in CORE_RANGES} == CORE_RANGES


def test_the_tests_are_linted_by_one_version():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()

    assert f"rev: v{constraints()['ruff']}\n" in hooks
