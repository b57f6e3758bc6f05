"""Documented examples of whole tasks, which the harness runs in separate processes."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("lm_eval")

from pipelines.command_line import main
from tests.documented_code import examples_of_docstrings
from tests.small_models import write_run
from tests.source_tree import ROOT
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer

pytestmark = pytest.mark.slow

# Harness and library count these words equally: white space is ASCII, and never at the ends.
TEXT = "\n".join(
    f"{subject} {verb} the river at 5:30."
    for subject in ("the old miller", "every sailor", "the moon")
    for verb in ("counts", "remembers", "paints")
)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("made"), ByteTokenizer(), TEXT)[0].folder


@pytest.fixture
def folder(run_folder, tmp_path):
    """Creates a folder with a run and a text."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(run_folder)
    (tmp_path / "mine.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    return tmp_path


def run(words, folder):
    """Runs a command in a folder that also has its caches, without downloads."""
    settings = {
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "cache"),
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def evaluated(run_folder, tmp_path_factory):
    """Returns the figures of `txl evaluate`."""
    path = tmp_path_factory.mktemp("text") / "mine.txt"
    path.write_text(TEXT)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(["evaluate", "--workdir", str(run_folder), "--text", str(path), "--json"]) == 0
    return json.loads(output.getvalue())


def check_figures(found, expected):
    byte_perplexity = 2 ** expected["bits_per_byte"]
    assert found["bits_per_byte,none"] == pytest.approx(expected["bits_per_byte"], rel=1e-6)
    assert found["byte_perplexity,none"] == pytest.approx(byte_perplexity, rel=1e-6)
    assert found["word_perplexity,none"] == pytest.approx(expected["word_perplexity"], rel=1e-6)


def test_the_documented_command_has_the_figures_of_txl_evaluate(folder, evaluated):
    text = (ROOT / "txl_tf" / "README.md").read_text()
    section = text.split("## Tasks of lm-evaluation-harness")[1].split("\n## ")[0]
    ((path, task),) = re.findall(r"`(\S+\.yaml)`.*?```yaml\n(.*?)```", section, re.DOTALL)
    (command,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (folder / path).parent.mkdir()
    (folder / path).write_text(task)

    finished = run(["bash", "-ec", command], folder)

    assert finished.returncode == 0, finished.stderr
    (report,) = (folder / "results").rglob("*.json")
    check_figures(json.loads(report.read_text())["results"]["mine"], evaluated)


def test_the_example_of_the_model_has_the_same_figures(folder, evaluated):
    code = examples_of_docstrings()["txl_tf.harness.harness_model.HarnessModel"]
    preamble = "from txl_tf.harness import HarnessModel\n"

    printed = "\nimport json\nprint(json.dumps(results, default=str))"
    finished = run([sys.executable, "-c", preamble + code + printed], folder)

    assert finished.returncode == 0, finished.stderr
    check_figures(json.loads(finished.stdout.splitlines()[-1]), evaluated)
