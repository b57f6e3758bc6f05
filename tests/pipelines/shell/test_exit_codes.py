"""Whatever ends a job: three lines at most, the right exit code, no traceback on the terminal."""

import errno
import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
import tensorflow as tf

from pipelines import command_line
from pipelines.shell.exit_codes import MAX_LINE_CHARACTERS
from tests.pipelines.txl_process import command, environment, run_new_txl
from txl_tf.errors import JobError, MismatchError, UsageError


@pytest.fixture
def failing(monkeypatch, capsys, tmp_path):
    """A function that runs a job which raises an error; returns exit code and lines."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(error):
        def fail(arguments):
            raise error

        monkeypatch.setattr("pipelines.jobs.doctor.run", fail)
        exit_code = command_line.main(["doctor"])
        output = capsys.readouterr()
        assert output.out == ""
        assert "Traceback (most recent" not in output.err
        lines = output.err.removesuffix("\n").split("\n")
        assert 1 <= len(lines) <= 3
        for line in lines:
            assert line.isprintable()
            assert len(line) <= MAX_LINE_CHARACTERS + 5
        return exit_code, lines

    return run


def test_an_unexpected_error_is_70_with_the_traceback_in_a_file(failing, tmp_path):
    exit_code, lines = failing(ZeroDivisionError("by nothing\nsecond line"))
    assert exit_code == 70
    assert lines[0] == "txl: Unexpected error: ZeroDivisionError: by nothing"
    path = lines[1].removeprefix("  The traceback is in ")
    assert os.path.dirname(path) == str(tmp_path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    text = Path(path).read_text()
    assert "Traceback (most recent call last)" in text
    assert "ZeroDivisionError: by nothing\nsecond line" in text
    assert "txl doctor" in lines[2]


def exhausted(message):
    return tf.errors.ResourceExhaustedError(None, None, message)


@pytest.mark.parametrize(
    ("error", "exit_code", "words"),
    [
        (MemoryError(), 70, "memory is full"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/file"), 74, "disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "/a/file"), 74, "Permission denied"),
        (exhausted("Graph execution error:\n\nOOM when allocating tensor"), 70, "Error: OOM when"),
        (exhausted("a.data; No space left on device"), 74, "disk is full"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_error_has_its_exit_code(failing, error, exit_code, words):
    result, lines = failing(error)
    assert result == exit_code
    assert words in "\n".join(lines)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (MismatchError("x" * 1_000_000, where="y" * 1_000_000, remedy="z" * 1_000_000), "1000000"),
        (UsageError("red \x1b[31m", where="a\x00b\x7fc\x85d"), "\\x1b[31m"),
        (UsageError("first\nsecond\r\nthird\u2028fourth", where="w\n" * 50), "first second third"),
        (UsageError("right \u202e to left", where="\udcff"), "\\u202e"),
        (JobError("", where="", remedy=""), "JobError"),
    ],
    ids=["huge", "control", "lines", "direction", "empty"],
)
def test_an_error_is_cut_and_escaped(failing, error, shown):
    exit_code, lines = failing(error)
    assert exit_code == error.exit_code
    assert shown in "\n".join(lines)


def test_ctrl_c_is_130(failing):
    assert failing(KeyboardInterrupt()) == (130, ["Interrupted."])


MISSING = ("train", "--config", "none-of-this-name", "--data", "d", "--workdir", "w")
BUFFERED = {key: value for key, value in environment().items() if key != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize(
    ("redirection", "arguments", "exit_code"),
    [
        ("2>&-", MISSING, 66),
        (">/dev/full", ("launch", "--help"), 74),
        ("2>/dev/full", MISSING, 66),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_streams_that_are_closed_or_full_end_with_one_code(
    tmp_path, redirection, arguments, exit_code
):
    words = ["bash", "-c", f'"$@" {redirection}', "bash", *command(*arguments)]
    finished = subprocess.run(words, capture_output=True, cwd=tmp_path, env=BUFFERED, check=False)
    assert b"Traceback" not in finished.stderr and b"ignored" not in finished.stderr
    assert len(finished.stderr.splitlines()) <= 3, finished.stderr
    assert finished.returncode == exit_code
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_ends_the_job_without_a_word(tmp_path):
    read_end, write_end = os.pipe()
    os.close(read_end)
    finished = subprocess.run(
        command("launch", "--help"),
        stdout=write_end,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=BUFFERED,
        check=False,
    )
    os.close(write_end)
    assert finished.returncode == 141
    assert finished.stderr == b""


@pytest.mark.slow
def test_the_first_line_comes_before_tensorflow_whose_log_is_silent(trained):
    finished = run_new_txl("generate", "--workdir", trained, "--prompt", "1", "--max-tokens", "1")
    first, *others = finished.stderr.splitlines()
    assert first == "txl generate: loading TensorFlow"
    assert [line.split()[0] for line in others] == ["step", "seed"]
