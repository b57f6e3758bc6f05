"""Checks of Python and package versions against the tested ones."""

import dataclasses
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipelines.diagnosis.machine_checks import MachineFacts
from pipelines.diagnosis.version_checks import (
    CORE_RANGES,
    TestedVersions,
    check_build,
    check_core_packages,
    check_libtpu,
    check_other_packages,
    check_python,
)
from tests.pipelines.diagnosis.made_up_machine import (
    TESTED,
    good_machine,
    good_tpu_machine,
    with_packages,
)


def faults(findings):
    return [finding for finding in findings if finding is not None and finding.status == "fault"]


def every_finding(facts):
    return [
        check_python(facts, TESTED),
        check_build(facts, TESTED),
        check_libtpu(facts, TESTED),
        *check_core_packages(facts, TESTED),
        check_other_packages(facts, TESTED),
    ]


@pytest.mark.parametrize("machine", [good_machine, good_tpu_machine])
def test_the_tested_versions_are_all_right(machine, tmp_path):
    findings = every_finding(machine(tmp_path))

    assert {finding.status for finding in findings if finding} == {"ok"}


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("3.10.14", "fault"),
        ("3.11.0", "ok"),
        ("3.13.9", "ok"),
        ("3.13.0rc2", "ok"),
        ("3.14.0", "fault"),
        ("3.12.1+", "ok"),
    ],
)
def test_python_is_held_to_the_range(version, status, tmp_path):
    assert check_python(good_machine(tmp_path, python=version), TESTED).status == status


@pytest.mark.parametrize("on_disk", ["tensorflow", "tensorflow-tpu", None])
def test_two_builds_of_tensorflow_are_one_too_many(on_disk, tmp_path):
    facts = good_tpu_machine(tmp_path, build_on_disk=on_disk)

    finding = check_build(with_packages(facts, tensorflow="2.20.0"), TESTED)

    assert finding.status == "fault"
    assert f"of {on_disk or 'neither'}" in finding.what
    assert finding.remedy == (
        "pip uninstall -y tensorflow tensorflow-tpu && "
        f"pip install --no-deps tensorflow-tpu==2.20.0 libtpu=={TESTED.libtpu}"
    )


def test_the_files_of_another_build_are_noticed(tmp_path):
    finding = check_build(good_tpu_machine(tmp_path, build_on_disk=None), TESTED)

    assert finding.status == "fault"
    assert "lie over" in finding.what


def test_a_cpu_build_on_a_machine_with_chips_is_a_fault(tmp_path):
    facts = good_machine(tmp_path, tpu_files=("/dev/vfio/0",))

    finding = check_build(facts, TESTED)

    assert finding.status == "fault"
    assert "tensorflow-tpu==2.20.0" in finding.remedy


def test_no_tensorflow_is_said_once(tmp_path):
    found = faults(every_finding(with_packages(good_machine(tmp_path), tensorflow=None)))

    assert [finding.what for finding in found] == ["it is not installed"]


@pytest.mark.parametrize(
    ("version", "status"),
    [("0.0.14", "warning"), ("0.0.31", "ok"), ("0.0.32", "fault"), (None, "fault")],
)
def test_libtpu_must_be_one_that_tensorflow_can_load(version, status, tmp_path):
    facts = with_packages(good_tpu_machine(tmp_path), libtpu=version)

    finding = check_libtpu(facts, TESTED)

    assert finding.status == status
    assert ("libtpu==0.0.31" in finding.remedy) == (status != "ok")


def test_libtpu_matters_to_the_tpu_build_only(tmp_path):
    assert check_libtpu(with_packages(good_machine(tmp_path), libtpu="0.0.51"), TESTED) is None


@pytest.mark.parametrize(
    ("name", "version", "word"),
    [
        ("tensorflow-text", "2.21.0", "cannot be imported"),
        ("tensorflow-text", None, "not installed"),
        ("tensorboard", None, "no longer brings it"),
        ("keras", "3.15.0", "tested was 3.15.1"),
        ("tensorflow", "2.21.0", "tested was 2.20.0"),
    ],
)
def test_a_core_package_must_be_the_tested_one(name, version, word, tmp_path):
    facts = with_packages(good_machine(tmp_path), **{name.replace("-", "_"): version})

    (found,) = faults(check_core_packages(facts, TESTED))

    assert found.check == name
    assert word in found.what
    assert found.remedy == f"pip install --no-deps {name}=={TESTED.packages[name]}"
    assert found.error.exit_code == 78


@pytest.mark.parametrize(
    ("name", "version"),
    [("keras", "3.16.0"), ("tensorflow", "2.20.1"), ("tensorflow_text", "2.20.2rc0")],
)
def test_another_version_of_a_core_package_within_its_range_is_a_warning(name, version, tmp_path):
    facts = with_packages(good_machine(tmp_path), **{name: version})

    (found,) = [each for each in check_core_packages(facts, TESTED) if each.status != "ok"]

    assert found.status == "warning"
    assert found.what == f"{version}; tested was {TESTED.packages[name.replace('_', '-')]}"


def test_a_version_that_is_none_is_a_fault(tmp_path):
    facts = with_packages(good_tpu_machine(tmp_path), keras="unknown", protobuf="main", libtpu="x")

    assert [finding.check for finding in faults(every_finding(facts))] == [
        "keras",
        "other packages",
    ]
    assert check_libtpu(facts, TESTED).status == "warning"


def test_a_wrong_tpu_build_is_mended_by_a_tpu_build(tmp_path):
    facts = with_packages(good_tpu_machine(tmp_path), tensorflow_tpu="2.19.1")

    (found,) = faults(check_core_packages(facts, TESTED))

    assert found.remedy == "pip install --no-deps tensorflow-tpu==2.20.0"


@pytest.mark.parametrize(
    ("changes", "status", "word"),
    [
        ({"numpy": "1.26.4"}, "warning", "numpy 1.26.4"),
        ({"protobuf": "6.0.0"}, "warning", "protobuf 6.0.0"),
        ({"protobuf": "4.25.3"}, "fault", "older than 5.28"),
        ({"h5py": None, "numpy": "1.26.4"}, "fault", "not installed: h5py"),
    ],
)
def test_other_packages_may_differ_but_not_be_missing(changes, status, word, tmp_path):
    finding = check_other_packages(with_packages(good_machine(tmp_path), **changes), TESTED)

    assert finding.status == status
    assert word in finding.what
    for name in changes:
        assert f"{name}=={TESTED.packages[name]}" in finding.remedy


def test_the_facts_of_this_machine_are_found():
    facts = MachineFacts.collect()

    assert facts.packages["keras"] == TESTED.packages["keras"]
    assert facts.packages[facts.build_on_disk] == TESTED.packages["tensorflow"]
    assert check_python(facts, TESTED).status == "ok"
    assert dataclasses.asdict(facts)["environment"]


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

    assert own.extras == set(EXTRAS) - {"harness", "keras-hub", "test", "tpu-compile"}


def test_the_doctor_faults_what_pip_would():
    ranges = {each.name: each.specifier for each in DEPENDENCIES}

    assert {name: ranges[name] for name in CORE_RANGES} == CORE_RANGES


def test_the_tests_are_linted_by_one_version():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()

    assert f"rev: v{constraints()['ruff']}\n" in hooks
