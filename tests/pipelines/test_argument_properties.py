"""Any arguments of any job: they are taken, or refused by three lines, without TensorFlow."""

import argparse
import importlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.analyze import ANALYSES
from pipelines.arguments import load_experiment
from pipelines.command_line import JOBS
from pipelines.workdir import Workdir
from tests.pipelines.arguments_process import STARTS, ArgumentsProcess
from tests.pipelines.test_absurd_settings import DATA, DIGITS

TRIES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
VALUES = [
    *("run", "text.txt", "export", "export/1", "config.toml", ".", "/dev/null", "/proc/self/mem"),
    *("none/of/these", "a" * 5000, "gs:/a/b", "quickstart", "enwik8_base", "local", "train"),
    *("", " ", "-", "--", "a,b", "1,2,3", "3,2,1", "0", "1", "-1", "2147483648", "9" * 19),
    *(
        DIGITS[400],
        DIGITS[5000],
        "1e300",
        "-1e300",
        "1e-300",
        "nan",
        "inf",
        "0x10",
        "1_000",
        "\u0661",
    ),
    *("\n", "\x1b[2J", "é\u202e", "\U0001f600", "%s%n", "{0}", "../..", "~", "*"),
    *("model.num_layers=4", "model.num_layers", "evaluation.batch_size=3", "=", "a.b=c"),
    *("v5e:4x4", "v5litepod-16", "words", "bytes", "jsonl"),
]


class _Failing(argparse.ArgumentParser):
    """Collects the options of a job."""


def options_of(name):
    parser = _Failing()
    importlib.import_module(name).add_arguments(parser)
    return [text for action in parser._actions for text in action.option_strings if text != "-h"]


OPTIONS = {(job,): options_of(f"pipelines.{job}") for job in JOBS if job != "analyze"}
OPTIONS |= {("analyze", name): options_of(f"pipelines.analysis.{name}") for name in ANALYSES}


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arguments")
    experiment = load_experiment("quickstart", [])
    Workdir(str(folder / "run")).begin(experiment, DATA)
    (folder / "text.txt").write_text("some text\n" * 100)
    (folder / "config.toml").write_text("[model]\nvocabulary_size = 3\n")
    (folder / "export" / "1").mkdir(parents=True)
    with ArgumentsProcess(folder) as process:
        yield process


@st.composite
def command_lines(draw, words):
    arguments = list(words)
    for _ in range(draw(st.integers(0, 7))):
        if draw(st.integers(0, 9)):
            arguments.append(draw(st.sampled_from(OPTIONS[words])))
        if draw(st.integers(0, 7)):
            value = st.sampled_from(VALUES)
            # Nothing that cannot be an argument: a zero byte, or half of a character.
            anything = st.text(
                st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10
            )
            arguments.append(draw(value if draw(st.integers(0, 5)) else anything))
    return arguments


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
def test_any_arguments_are_taken_or_refused(process, words):
    @TRIES
    @given(arguments=command_lines(words))
    def check(arguments):
        process.run(*arguments).check()

    check()


@TRIES
@given(arguments=st.lists(st.sampled_from([*JOBS, *ANALYSES, *VALUES, "--help", "-h"]), max_size=4))
def test_any_words_are_taken_or_refused(process, arguments):
    process.run(*arguments).check()


@pytest.mark.parametrize(
    "settings_of_run",
    [{"model.num_layers": 1024, "model.hidden_dim": 1 << 20}, {"evaluation.batch_size": 1 << 24}],
    ids=["model", "evaluation"],
)
@pytest.mark.parametrize("job", ["evaluate", "generate", "export"])
def test_a_run_that_this_machine_cannot_hold(process, tmp_path, settings_of_run, job):
    changes = [f"{name}={value}" for name, value in settings_of_run.items()]
    Workdir(str(tmp_path)).begin(load_experiment("quickstart", changes), DATA)
    extra = {"evaluate": "--data", "generate": "--prompt", "export": "--out"}[job]
    answer = process.run(job, "--workdir", tmp_path, extra, "x").check()
    assert answer.exit_code == (
        2 if "model.num_layers" in settings_of_run or job == "evaluate" else STARTS
    )
