"""The help of every job fits a screen, and its example is a command that the job takes."""

import importlib
import re
import shlex

import pytest

from pipelines.analyze import ANALYSES
from pipelines.command_line import JOBS, main

COMMANDS = [*((job,) for job in JOBS), *(("analyze", analysis) for analysis in ANALYSES)]
MAX_LINES, MAX_COLUMNS = 40, 80


@pytest.fixture
def shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words):
        with pytest.raises(SystemExit) as stopped:
            main([*words, "--help"])
        assert stopped.value.code == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_a_screen(shown, command):
    lines = shown(*command).splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= MAX_COLUMNS
    assert lines[0].startswith(f"usage: txl {' '.join(command)}")


def example_of(text):
    return shlex.split(re.search(r"\n  (txl (?:.*\\\n)*.*)", text)[1].replace("\\\n", " "))[1:]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_a_sentence_and_an_example_that_is_taken(shown, command, monkeypatch):
    if command == ("analyze",):
        pytest.skip("it lists the analyses, which have examples")
    text = shown(*command)
    summary = ANALYSES[command[1]] if len(command) > 1 else JOBS[command[0]]
    (sentence,) = re.findall(r"\n\n([A-Z][^.]*\.)\n  txl ", text.replace("\n" + " " * 7, " "))
    assert " ".join(sentence.split()).lower() == f"{summary}.".lower()
    example = example_of(text)
    name = command[0] if len(command) == 1 else f"analysis.{command[1]}"
    module = importlib.import_module(f"pipelines.{name}")
    taken = []
    monkeypatch.setattr(module, "check_arguments", taken.append)
    monkeypatch.setattr(module, "run", lambda arguments: None)
    assert main(example) == 0
    assert taken
