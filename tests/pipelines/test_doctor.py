"""`txl doctor`: findings of made-up machines, and the machine of the tests as a user sees it."""

import json
import shutil

import pytest

from pipelines import doctor
from tests.pipelines.txl_process import error_lines, run_new_txl
from txl_tf.errors import StorageError

TESTED = doctor.pinned_versions()
GOOD = {name: version for name, version in TESTED.items() if name != "libtpu"}
TPU = {**GOOD, "tensorflow-tpu": GOOD["tensorflow"], "libtpu": TESTED["libtpu"]}
del TPU["tensorflow"]


def without(packages, name):
    return {key: value for key, value in packages.items() if key != name}


@pytest.mark.parametrize("packages, has_tpu", [(GOOD, False), (TPU, True)])
def test_the_pinned_versions_are_well(packages, has_tpu):
    assert {each.status for each in doctor.check_packages(packages, has_tpu)} == {"ok"}


@pytest.mark.parametrize(
    ("packages", "has_tpu", "check", "status", "words"),
    [
        (without(GOOD, "keras"), False, "keras", "fault", "not installed"),
        ({**GOOD, "keras": "3.9.0"}, False, "keras", "fault", "3.9.0; the tested version"),
        ({**GOOD, "tensorflow": "2.20.9"}, False, "tensorflow", "warning", "the tested"),
        ({**GOOD, "numpy": "strange"}, False, "numpy", "fault", "the tested"),
        ({**TPU, "libtpu": "9.0.0"}, True, "libtpu", "warning", "the tested"),
        (GOOD, True, "TensorFlow build", "fault", "needs tensorflow-tpu alone"),
        ({**TPU, "tensorflow": "2.20.0"}, True, "TensorFlow build", "fault", "and tensorflow-tpu"),
    ],
)
def test_another_version_has_a_verdict_and_a_command(packages, has_tpu, check, status, words):
    found = next(each for each in doctor.check_packages(packages, has_tpu) if each.check == check)
    assert found.status == status and words in found.what
    assert found.remedy.startswith("pip ")


@pytest.mark.parametrize(("free", "status"), [(1 << 20, "fault"), (2 << 30, "warning")])
def test_a_folder_without_room_is_said(free, status, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    assert doctor.check_folder(str(tmp_path / "new")).status == status
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").touch()
    assert doctor.check_folder(str(tmp_path / "file")).exit_code == StorageError.exit_code


@pytest.mark.parametrize(
    ("program", "check", "words"),
    [
        ("import os; os.abort()", "import", "SIGABRT"),
        ("import sys; print('{\"stage\": \"all-reduce\"}'); sys.exit('no')", "all-reduce", "no"),
    ],
)
def test_the_end_of_the_probe_is_a_finding(program, check, words, monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE", program)
    (found,) = doctor.probe_findings({}, 60.0)
    assert (found.check, found.status) == (check, "fault") and words in found.what


@pytest.mark.slow
def test_this_machine_is_well_and_bad_folders_are_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    remote = "ram://doctor/run"
    places = ("--folder", tmp_path, "--folder", remote)
    finished = run_new_txl("doctor", "--json", *places)
    findings = {each["check"]: each for each in json.loads(finished.stdout)}
    assert finished.returncode == 0, finished.stdout
    checks = {"import", "all-reduce", "text operations", f"folder {remote}"}
    assert findings["XLA_FLAGS"]["status"] == "warning"
    assert checks <= findings.keys()
    (tmp_path / "file").touch()
    bad = ("--folder", tmp_path / "file", "--timeout-seconds", "0.1")
    finished = run_new_txl("doctor", "--json", *bad)
    # The first fault decides; that TensorFlow had no time at all is the second.
    assert finished.returncode == 74
    assert 1 <= len(error_lines(finished)) <= 3
    assert json.loads(finished.stdout)[-1]["what"].startswith("no answer within")
