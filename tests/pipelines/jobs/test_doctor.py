"""`txl doctor`: findings of made-up machines, and the machine of the tests as a user sees it."""

import pytest

from pipelines.jobs import doctor
from tests.pipelines.txl_process import run_new_txl
from txl_tf.errors import StorageError

TESTED = doctor.pinned_versions()
GOOD = {name: version for name, version in TESTED.items() if name != "libtpu"}
TPU = {**GOOD, "tensorflow-tpu": GOOD["tensorflow"], "libtpu": TESTED["libtpu"]}
del TPU["tensorflow"]


def without(packages, name):
    return {key: value for key, value in packages.items() if key != name}


@pytest.mark.parametrize("packages, has_tpu", [(GOOD, False), (TPU, True)])
def test_the_pinned_versions_are_well(packages, has_tpu):
    assert not any(each.remedy for each in doctor.check_packages(packages, has_tpu))


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
    result = next(each for each in doctor.check_packages(packages, has_tpu) if each.check == check)
    assert str(result).startswith(status) and words in result.what
    assert result.remedy.startswith("pip ")


def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path):
    assert doctor.check_folder(str(tmp_path / "new")).exit_code == 0
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "file").touch()
    assert doctor.check_folder(str(tmp_path / "file")).exit_code == StorageError.exit_code


def test_the_end_of_the_probe_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE", "import os; os.abort()")
    assert "SIGABRT" in doctor.check_devices(None).what
    monkeypatch.setattr(doctor, "_PROBE", "import sys; print('no', file=sys.stderr); sys.exit(66)")
    assert doctor.check_devices(None).exit_code == 66
    monkeypatch.setattr(doctor, "_PROBE", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "_TIMEOUT_SECONDS", 0.1)
    assert doctor.check_devices(None).what == "no answer within 0.1 seconds"


@pytest.mark.slow
def test_the_devices_of_jax_are_added_up_where_it_is_the_backend(monkeypatch):
    pytest.importorskip("jax")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    finding = doctor.check_devices(None)
    assert finding.exit_code == 0 and " on JAX " in finding.what, finding


def test_a_fault_is_the_end_of_the_job(tmp_path, monkeypatch, txl):
    monkeypatch.setattr(doctor, "_PROBE", "")
    (tmp_path / "file").touch()
    txl("doctor", "--folder", tmp_path / "file", code=74, says="Number of faults: 1")


@pytest.mark.slow
def test_this_machine_is_well(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    finished = run_new_txl("doctor", "--folder", tmp_path, "--folder", "ram://doctor/run")
    assert "warning  XLA_FLAGS" in finished.stdout and "sums of 2 replicas" in finished.stdout
