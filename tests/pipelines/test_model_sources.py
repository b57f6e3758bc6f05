"""Every job that reads a model reads it from a folder of every kind."""

import importlib.util
import json

import pytest

from pipelines.finetune import given_tokenizer
from tests.pipelines.txl_process import error_lines, run_txl
from tests.slow_case import slow_case
from txl_tf.errors import InputMissingError

KINDS = ("run", "checkpoint", "copied checkpoint", "converted", "export")
HAS_EXTRAS = all(map(importlib.util.find_spec, ("matplotlib", "safetensors")))
# Every job with what it is given besides the folder; FILE, DATA and OUT stand for paths.
JOBS = {
    "evaluate": ("evaluate", "--workdir", "MODEL", "--data", "DATA", "--json"),
    "evaluate a text": ("evaluate", "--workdir", "MODEL", "--text", "FILE", "--json"),
    "generate": ("generate", "--workdir", "MODEL", "--prompt", "1 and", "--num-tokens", "4"),
    "embed": ("embed", "--workdir", "MODEL", "--text", "FILE", "--out", "ARRAYS"),
    "export": ("export", "--workdir", "MODEL", "--out", "OUT", "--weights", "bfloat16"),
    "convert": ("convert", "--to", "hugging_face", "--workdir", "MODEL", "--out", "OUT"),
    "verify": ("verify", "MODEL"),
    "attention": (
        *("analyze", "attention", "--workdir", "MODEL", "--data", "DATA", "--out", "OUT"),
        *("--segments", "2", "--rows", "2", "--json"),
    ),
    "context": (
        *("analyze", "context", "--workdir", "MODEL", "--data", "DATA", "--out", "OUT"),
        *("--context", "4,8", "--tokens", "20", "--memory", "4,8", "--json"),
    ),
    "recall": (
        *("analyze", "recall", "--workdir", "MODEL", "--out", "OUT", "--memory", "4,8"),
        *("--documents", "2", "--distances", "0,1", "--json"),
    ),
}
PAIRS = [slow_case(job, kind) for job in JOBS for kind in KINDS]


def run_job(job, folder, data_folder, text_file, out):
    paths = {"MODEL": folder, "DATA": data_folder, "FILE": text_file, "OUT": out}
    paths["ARRAYS"] = out.with_suffix(".npz")
    finished = run_txl(*(paths.get(word, word) for word in JOBS[job]))
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.skipif(not HAS_EXTRAS, reason="needs matplotlib and safetensors")
@pytest.mark.parametrize(("job", "kind"), PAIRS)
def test_every_pair(job, kind, model_folders, data_folder, text_file, tmp_path):
    output = run_job(job, model_folders[kind], data_folder, text_file, tmp_path / "out")
    if job == "generate":
        of_run = run_job(job, model_folders["run"], data_folder, text_file, tmp_path / "of run")
        assert output == of_run
    elif job in ("evaluate", "evaluate a text"):
        figures = json.loads(output)
        of_run = run_job(job, model_folders["run"], data_folder, text_file, tmp_path / "of run")
        # Only of a run it is known how many rows it evaluates with, which matters little.
        expected = json.loads(of_run)["nats_per_token"]
        assert figures["nats_per_token"] == pytest.approx(expected, rel=1e-2)
        assert figures["step"] == (0 if kind in ("converted", "export") else 40)
    elif job in ("export", "convert"):
        assert list((tmp_path / "out").iterdir())
    elif job == "embed":
        assert "texts, " in output
        assert (tmp_path / "out.npz").exists()
    elif job == "recall":
        of_run = run_job(job, model_folders["run"], data_folder, text_file, tmp_path / "of run")
        measured, expected = (json.loads(each)["recall"] for each in (output, of_run))
        for row, row_of_run in zip(measured, expected, strict=True):
            assert row["key_nats"] == pytest.approx(row_of_run["key_nats"], rel=1e-2)
    elif job == "verify":
        assert "verified: " in output
    else:
        assert json.loads(output)["split"] == "valid"


@pytest.mark.skipif(not HAS_EXTRAS, reason="needs matplotlib and safetensors")
@pytest.mark.parametrize("kind", [slow_case(kind) for kind in KINDS])
def test_a_report_is_of_a_run(kind, model_folders, tmp_path):
    out = tmp_path / "report.html"
    finished = run_txl("report", "--workdir", model_folders[kind], "--out", out)
    if kind in ("run", "checkpoint"):
        assert finished.returncode == 0, finished.stderr
        assert out.exists()
    else:
        assert finished.returncode == 2
        assert "A report is of a run" in error_lines(finished)[0]
        assert "`txl train` wrote" in error_lines(finished)[-1]


@pytest.mark.parametrize("kind", [slow_case(kind) for kind in KINDS])
def test_a_task_takes_the_vocabulary_of_any_model_that_has_one(kind, model_folders, data_folder):
    expected = given_tokenizer(str(data_folder))
    assert given_tokenizer(str(model_folders[kind])).fingerprint == expected.fingerprint


def test_a_folder_without_a_vocabulary_is_told_from_those_that_have_one(tmp_path):
    with pytest.raises(InputMissingError, match="The folder has no vocabulary") as caught:
        given_tokenizer(str(tmp_path))
    assert "an export" in caught.value.remedy


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (("--step", "40"), "checkpoint", "A checkpoint is of one step."),
        (("--step", "40"), "converted", "A converted model has no steps."),
        (("--step", "40"), "export", "An export has no steps."),
        (("--watch",), "copied checkpoint", "Only a run gets new checkpoints."),
    ],
)
def test_steps_are_of_runs(options, kind, words, model_folders, data_folder):
    folder = model_folders[kind]
    finished = run_txl("evaluate", "--workdir", folder, "--data", data_folder, *options)
    assert finished.returncode == 2
    assert words in error_lines(finished)[0]
