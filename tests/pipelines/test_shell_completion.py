"""A shell completes lines of `txl` with what it prints."""

import shutil
import subprocess
import sys

import pytest

from pipelines.command_line import JOBS


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("shtab")
    finished = subprocess.run(
        [sys.executable, "-m", "pipelines.command_line", "--print-completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout


def completed(script, line):
    """The words that bash offers for the last one of a line."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    words = line.split(" ")
    ask = """
eval "$1"; shift
function_name=$(complete -p txl | sed -E 's/.*-F ([^ ]+) .*/\\1/')
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
"$function_name" txl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
    finished = subprocess.run(
        ["bash", "-c", ask, "bash", script, *words], capture_output=True, text=True, check=True
    )
    return set(finished.stdout.split())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("txl ", set(JOBS)),
        ("txl train --work", {"--workdir"}),
        ("txl analyze speed --rep", {"--repeats"}),
    ],
)
def test_bash_completes(script, line, expected):
    assert completed(script, line) >= expected
    if expected != set(JOBS):
        assert completed(script, line) == expected
