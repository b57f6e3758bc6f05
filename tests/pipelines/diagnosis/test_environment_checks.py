import json
import os
import subprocess
import sys

import pytest

from pipelines.diagnosis.environment_checks import (
    check_environment,
    check_keras_settings,
    check_tpu_files,
    check_tpu_lock,
)
from tests.pipelines.diagnosis.made_up_machine import good_machine, good_tpu_machine

HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("variable", "value", "tpu", "status"),
    [
        ("KERAS_BACKEND", "jax", None, "fault"),
        ("KERAS_BACKEND", "tensorflow", None, "ok"),
        ("TF_USE_LEGACY_KERAS", "1", None, "fault"),
        ("TF_USE_LEGACY_KERAS", "0", None, "ok"),
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=2", None, "warning"),
        ("XLA_FLAGS", "--xla_dump_to=/tmp", None, "warning"),
        ("TF_CONFIG", "{}", None, "warning"),
        ("TPU_LOAD_LIBRARY", "0", None, "ok"),
        ("TPU_LOAD_LIBRARY", "0", "local", "fault"),
        ("TPU_LOAD_LIBRARY", "1", "local", "ok"),
        ("TPU_LIBRARY_PATH", "/nowhere/libtpu.so", None, "fault"),
        ("TPU_LIBRARY_PATH", __file__, None, "ok"),
    ],
)
def test_each_variable_that_hurts_is_named(variable, value, tpu, status, tmp_path):
    facts = good_machine(tmp_path, environment={variable: value})

    (finding,) = check_environment(facts, tpu)

    assert finding.status == status
    if status != "ok":
        assert finding.check == variable
        assert f"unset {variable}" in finding.remedy


@pytest.mark.parametrize(("value", "status"), [("0", "ok"), ("1", "fault")])
def test_the_driver_of_a_slice_leaves_the_chips_to_the_server(value, status, tmp_path):
    facts = good_tpu_machine(tmp_path, environment={"TPU_LOAD_LIBRARY": value})

    (finding,) = check_environment(facts, "grpc://10.0.0.1:8470,10.0.0.2:8470")

    assert finding.status == status


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        (json.dumps({"floatx": "float32", "backend": "jax"}), "ok"),
        (json.dumps({"floatx": "float16"}), "fault"),
        ("[]", "fault"),
        ("{", "fault"),
    ],
)
def test_the_settings_of_keras_must_leave_float32(settings, status, tmp_path):
    facts = good_machine(tmp_path)
    assert check_keras_settings(facts).status == "ok"

    facts.keras_settings.write_text(settings)

    assert check_keras_settings(facts).status == status


def test_a_lock_that_a_process_holds_names_the_process(tmp_path):
    facts = good_tpu_machine(tmp_path)
    assert check_tpu_lock(facts, None).status == "ok"
    command = [sys.executable, "-c", HOLD_LOCK, str(facts.lock_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        held = check_tpu_lock(facts, None)
        holder.stdin.close()
    left = check_tpu_lock(facts, None)

    assert (held.status, held.error.exit_code) == ("fault", 73)
    assert held.remedy == f"kill {holder.pid}"
    # The file stays behind, and does no harm.
    assert facts.lock_file.exists()
    assert left.status == "ok"


def test_a_lock_of_another_user_is_to_be_removed(tmp_path, monkeypatch):
    facts = good_tpu_machine(tmp_path)
    facts.lock_file.touch()

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    finding = check_tpu_lock(facts, "local")

    assert finding.status == "fault"
    assert finding.remedy == f"sudo rm {facts.lock_file}"


def test_a_tpu_is_missed_only_where_it_was_asked_for(tmp_path):
    facts = good_machine(tmp_path)

    assert check_tpu_files(facts, None) is None
    assert check_tpu_files(facts, "grpc://10.0.0.1:8470") is None
    assert check_tpu_lock(facts, None) is None
    missing = check_tpu_files(facts, "local")
    assert (missing.status, missing.error.exit_code) == ("fault", 66)
    assert check_tpu_files(good_tpu_machine(tmp_path), "local").status == "ok"
