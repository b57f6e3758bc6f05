"""Checks of environment, folders, TPU devices and the metadata server."""

import collections
import contextlib
import email.utils
import http.server
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from pipelines.diagnosis import machine_checks
from pipelines.diagnosis.machine_checks import (
    check_checkpoints,
    check_environment,
    check_folder,
    check_keras_settings,
    check_metadata,
    check_tpu_files,
    check_tpu_lock,
)
from tests.pipelines.diagnosis.made_up_machine import good_machine, good_tpu_machine
from txl_tf.models.sizes import CheckpointCost


@pytest.mark.parametrize(
    ("num_bytes", "free_bytes", "statuses"),
    [
        (10**9, 2 * 10**9, ["ok", "ok"]),
        (10**10, 2 * 10**10, ["warning", "ok"]),
        (10**10, 10**9, ["warning", "warning"]),
    ],
)
def test_time_and_room_are_checked(num_bytes, free_bytes, statuses):
    cost = CheckpointCost(num_bytes, num_bytes / 1e8)
    findings = list(check_checkpoints(cost, free_bytes))
    assert [finding.status for finding in findings] == statuses
    for finding in findings:
        assert finding.status == "ok" or finding.remedy


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


Usage = collections.namedtuple("Usage", "total used free")


def test_a_folder_is_left_as_it_was(tmp_path):
    (tmp_path / "there").write_text("kept")

    finding = check_folder(str(tmp_path))

    assert finding.status in ("ok", "warning")
    assert os.listdir(tmp_path) == ["there"]


def test_a_folder_that_is_to_be_made_is_not_made(tmp_path):
    finding = check_folder(str(tmp_path / "runs" / "one"))

    assert finding.status in ("ok", "warning")
    assert os.listdir(tmp_path) == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")

    finding = check_folder(str(tmp_path / "file"))

    assert (finding.status, finding.error.exit_code) == ("fault", 74)
    assert str(tmp_path) in finding.remedy


@pytest.mark.parametrize(
    ("free_bytes", "status"), [(2**20, "fault"), (2**31, "warning"), (2**40, "ok")]
)
def test_room_is_needed(free_bytes, status, tmp_path, monkeypatch):
    monkeypatch.setattr(
        machine_checks.shutil, "disk_usage", lambda folder: Usage(2**41, 0, free_bytes)
    )

    finding = check_folder(str(tmp_path))

    assert finding.status == status
    assert finding.to_dict()["exit_code"] == (74 if status == "fault" else 0)


def test_what_is_read_must_be_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_checks, "read_file", lambda path: b"something else")

    finding = check_folder(str(tmp_path))

    assert finding.status == "fault"
    assert os.listdir(tmp_path) == []


def test_a_remote_folder_goes_through_tensorflow():
    assert check_folder("ram://doctor/runs").status == "ok"
    assert check_folder("nosuch://doctor/runs").status == "fault"


@contextlib.contextmanager
def metadata_server(status=200, flavor="Google", clock_ahead_seconds=0.0):
    """A server on this machine; yields its address and the requests' flavors."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.headers["Metadata-Flavor"])
            self.send_response_only(status)
            self.send_header("Metadata-Flavor", flavor)
            self.send_header(
                "Date", email.utils.formatdate(time.time() + clock_ahead_seconds, usegmt=True)
            )
            self.end_headers()
            self.wfile.write(b"1")

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("behaviour", "status", "word"),
    [
        ({}, "ok", "answers"),
        ({"status": 403}, "warning", "403"),
        ({"flavor": "Other"}, "warning", "is none"),
        ({"clock_ahead_seconds": 3600}, "warning", "clock"),
    ],
)
def test_the_server_that_the_environment_names_is_asked(behaviour, status, word, tmp_path):
    with metadata_server(**behaviour) as (address, asked):
        facts = good_machine(tmp_path, environment={"GCE_METADATA_HOST": address})
        finding = check_metadata(facts)

    assert finding.status == status
    assert word in finding.what
    assert asked == ["Google"]


def test_no_answer_is_a_warning_on_google_cloud_and_nothing_elsewhere(tmp_path):
    with metadata_server() as (address, _):
        pass  # now nobody listens there
    facts = good_machine(tmp_path, environment={"GCE_METADATA_HOST": address})

    finding = check_metadata(facts)

    assert finding.status == "warning"
    assert address in finding.remedy
    assert check_metadata(good_machine(tmp_path)) is None
