import collections
import os

import pytest

from pipelines.diagnosis import folder_checks
from pipelines.diagnosis.folder_checks import check_folder

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
        folder_checks.shutil, "disk_usage", lambda folder: Usage(2**41, 0, free_bytes)
    )

    finding = check_folder(str(tmp_path))

    assert finding.status == status
    assert finding.to_dict()["exit_code"] == (74 if status == "fault" else 0)


def test_what_is_read_must_be_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_checks, "read_file", lambda path: b"something else")

    finding = check_folder(str(tmp_path))

    assert finding.status == "fault"
    assert os.listdir(tmp_path) == []


def test_a_remote_folder_goes_through_tensorflow():
    assert check_folder("ram://doctor/runs").status == "ok"
    assert check_folder("nosuch://doctor/runs").status == "fault"
