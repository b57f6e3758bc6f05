"""The terminal, streams and surroundings that a user may have, each in a process of its own."""

import os
import subprocess

import pytest

from tests.pipelines.txl_process import command, environment

MISSING = ("train", "--config", "none-of-this-name", "--data", "d", "--workdir", "w")


def run(arguments, *, cwd, variables=None, redirection="", removed=()):
    """Runs `txl` through a shell, which closes and redirects what is wanted."""
    unwanted = {"PYTHONUNBUFFERED", "PYTHONIOENCODING", *removed}
    kept = {name: value for name, value in environment().items() if name not in unwanted}
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirection}', "bash", *command(*arguments)],
        capture_output=True,
        cwd=cwd,
        env={**kept, **(variables or {})},
        timeout=120,
        check=False,
    )


def assert_quiet(finished):
    assert b"Traceback" not in finished.stderr, finished.stderr
    assert b"Exception ignored" not in finished.stderr, finished.stderr
    assert len(finished.stderr.splitlines()) <= 3, finished.stderr


@pytest.mark.parametrize(
    ("redirection", "arguments", "exit_code"),
    [
        ("2>&-", MISSING, 66),
        (">/dev/full", ("launch", "--help"), 74),
        ("2>/dev/full", MISSING, 66),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_streams_that_are_closed_or_full(tmp_path, redirection, arguments, exit_code):
    finished = run(arguments, cwd=tmp_path, redirection=redirection)
    assert_quiet(finished)
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
        env={key: value for key, value in environment().items() if key != "PYTHONUNBUFFERED"},
        check=False,
    )
    os.close(write_end)
    assert finished.returncode == 141
    assert finished.stderr == b""


def test_arguments_that_are_not_utf8(tmp_path):
    finished = subprocess.run(
        [*map(os.fsencode, command("train", "--config")), b"a\xff"],
        capture_output=True,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert_quiet(finished)
    assert finished.returncode == 2
    assert finished.stderr.startswith(b"txl: An argument is not UTF-8.\n")
