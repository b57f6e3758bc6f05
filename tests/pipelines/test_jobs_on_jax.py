"""Jobs on JAX have the figures of the same jobs on TensorFlow."""

import json
import shutil

import pytest

from tests.jax_process import NEEDS_JAX
from tests.pipelines.fine_tuning_rows import ROWS, SETTINGS, write_rows
from tests.pipelines.txl_process import run_new_txl

pytestmark = NEEDS_JAX
DYNAMIC = ("evaluation.batch_size=1", "evaluation.dynamic_learning_rate=0.03")
JOBS = {
    "evaluate": ("evaluate",),
    "dynamic": ("evaluate", *(word for change in DYNAMIC for word in ("--set", change))),
    "context": ("analyze", "context", "--context", "8,16,24", "--tokens", "40", "--out", "report"),
    "attention": ("analyze", "attention", "--segments", "4", "--out", "report"),
}


def figures(report, place=()):
    """The numbers of a report by place, without those of time."""
    if isinstance(report, dict | list):
        pairs = report.items() if isinstance(report, dict) else enumerate(report)
        parts = [figures(value, (*place, name)) for name, value in pairs]
        return {name: value for part in parts for name, value in part.items()}
    is_figure = isinstance(report, int | float) and not any("second" in str(name) for name in place)
    return {place: report} if is_figure else {}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_has_the_figures_of_tensorflow(job, untouched, data_folder, tmp_path):
    workdir = shutil.copytree(untouched, tmp_path / "run")
    inputs = ("--workdir", workdir, "--data", data_folder, "--split", "test", "--json")
    reports = []
    for backend in ("tensorflow", "jax"):
        folder = tmp_path / backend
        folder.mkdir()
        finished = run_new_txl(*JOBS[job], *inputs, "--backend", backend, cwd=folder)
        reports.append(figures(json.loads(finished.stdout)))
    assert reports[0]
    assert reports[1] == pytest.approx(reports[0], rel=1e-5, abs=1e-5)


@pytest.fixture
def finetune(untouched, tmp_path):
    """The command of a run with examples, for which its first steps are taken."""
    examples = write_rows(tmp_path / "examples.jsonl", ROWS["classification"])
    files = ("--init-from", untouched, "--train", examples, "--valid", examples)
    command = ("finetune", *files, *SETTINGS)
    workdir = tmp_path / "begun"
    run_new_txl(*command, "--workdir", workdir, "--set", "training.num_steps=40", cwd=tmp_path)
    return command, workdir


@pytest.mark.parametrize("job", ["train", "finetune"])
def test_a_run_goes_on_on_the_other_backend_and_back(job, untouched, request, tmp_path):
    command, begun = ("train",), untouched
    if job == "finetune":
        pytest.importorskip("sklearn")
        command, begun = request.getfixturevalue("finetune")
    losses = []
    for backends in (("tensorflow", "tensorflow"), ("jax", "tensorflow")):
        workdir = shutil.copytree(begun, tmp_path / "-".join(backends))
        for num_steps, backend in zip((50, 60), backends, strict=True):
            steps = f"training.num_steps={num_steps}"
            words = (*command, "--workdir", workdir, "--set", steps, "--backend", backend)
            run_new_txl(*words, cwd=tmp_path)
        assert json.loads((workdir / "run.json").read_text())["backend"] == "tensorflow"
        lines = (workdir / "ledger.jsonl").read_text().splitlines()
        losses.append([float.fromhex(json.loads(line)["loss"]) for line in lines[1:]])
    assert len(losses[0]) == 60
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
