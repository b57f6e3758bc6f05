"""The help of every job fits a screen, and its example is a command that the job takes."""

import importlib
import re
import shlex

import pytest

from pipelines.analyze import ANALYSES
from pipelines.command_line import JOBS, main
from pipelines.configs import NAMED_EXPERIMENTS

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


def test_the_example_of_launch_works_when_it_is_copied(shown, capsys):
    assert main(example_of(shown("launch"))) == 0
    printed = capsys.readouterr().out
    assert "gcloud" in printed and "my-run" in printed


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


def test_groups_have_titles_and_options_their_defaults(shown):
    text = shown("generate")
    for title in ("model:", "text:", "sampling:"):
        assert f"\n{title}\n" in text
    assert "(default: 0.9)" in text and "(default: 128)" in text


def test_training_names_the_experiments_and_how_to_extend_a_run(shown):
    text = shown("train")
    assert all(re.search(rf"\b{name}\b", text) for name in NAMED_EXPERIMENTS)
    assert "training.num_steps" in text
