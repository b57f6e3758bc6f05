"""The job with the analyses: which there are, and that only the chosen one is read."""

import sys

import pytest

from pipelines.analyze import ANALYSES
from pipelines.command_line import main


@pytest.mark.parametrize("analysis", ANALYSES)
def test_every_analysis_lists_its_arguments(analysis, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["analyze", analysis, "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert f"txl analyze {analysis}" in printed
    assert "--json" in printed


def test_all_analyses_are_listed_without_reading_one(monkeypatch, capsys):
    for name in ANALYSES:
        # What is None in `sys.modules` cannot be imported.
        monkeypatch.setitem(sys.modules, f"pipelines.analysis.{name}", None)
    with pytest.raises(SystemExit) as stopped:
        main(["analyze", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ANALYSES)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [([], "ANALYSIS"), (["dreams"], "dreams"), (["context", "--data", "d"], "--workdir")],
)
def test_wrong_usage_is_exit_code_2(arguments, word, capsys):
    assert main(["analyze", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 3
    assert word in "\n".join(lines)
