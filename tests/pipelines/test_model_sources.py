"""Every job that reads a model reads it from a folder of every kind."""

import importlib.util
import json

import pytest

from tests.pipelines.txl_process import error_lines, run_txl
from txl_tf.model_folder import checkpoint_store, open_model

KINDS = ("run", "checkpoint", "copied checkpoint", "converted", "export")
HAS_EXTRAS = all(map(importlib.util.find_spec, ("matplotlib", "safetensors")))
# Every job with what it is given besides the folder; FILE, DATA and OUT stand for paths.
JOBS = {
    "evaluate": ("evaluate", "--workdir", "MODEL", "--data", "DATA", "--json"),
    "evaluate a text": ("evaluate", "--workdir", "MODEL", "--text", "FILE", "--json"),
    "generate": (
        *("generate", "--workdir", "MODEL", "--prompt", "1 and"),
        *("--max-tokens", "4", "--seed", "1"),
    ),
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
    "train": (
        *("train", "--init-from", "MODEL", "--config", "CONFIG", "--data", "DATA"),
        *("--workdir", "OUT"),
    ),
    "finetune": (
        *("finetune", "--init-from", "MODEL", "--train", "EXAMPLES", "--valid", "EXAMPLES"),
        *("--workdir", "OUT", "--epochs", "1", "--set", "training.global_batch_size=2"),
        *("--set", "training.jit_compile=false", "--predict", "EXAMPLES"),
    ),
}
# All jobs open a folder by the same function; one of them tries every kind.
PAIRS = [
    (job, kind) for job in JOBS for kind in (KINDS if job == "evaluate a text" else ["export"])
]


def run_job(job, folder, data_folder, text_file, out):
    rows = [{"text": "1 and " * (1 + n), "label": ("a", "b")[n % 2]} for n in range(4)]
    examples = out.with_suffix(".jsonl")
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = out.with_suffix(".config.json")
    model = open_model(str(folder), None).experiment.model.to_dict()
    training = {"global_batch_size": 2, "num_steps": 2, "jit_compile": False}
    config.write_text(json.dumps({"model": model, "training": training}))
    values = {
        **{"MODEL": [folder], "DATA": [data_folder], "FILE": [text_file], "OUT": [out]},
        **{"ARRAYS": [out.with_suffix(".npz")], "EXAMPLES": [examples]},
        "CONFIG": [config],
    }
    finished = run_txl(*(each for word in JOBS[job] for each in values.get(word, [word])))
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.slow
@pytest.mark.skipif(not HAS_EXTRAS, reason="needs matplotlib and safetensors")
@pytest.mark.parametrize(("job", "kind"), PAIRS)
def test_every_pair(job, kind, model_folders, data_folder, text_file, tmp_path):
    output = run_job(job, model_folders[kind], data_folder, text_file, tmp_path / "out")
    if job == "generate":
        of_run = run_job(job, model_folders["run"], data_folder, text_file, tmp_path / "of run")
        assert output == of_run
    elif job.startswith("evaluate"):
        figures = json.loads(output)
        of_run = run_job(job, model_folders["run"], data_folder, text_file, tmp_path / "of run")
        # Only a converted folder has no rows and lengths of evaluations, which matters little.
        tolerance = 1e-2 if kind == "converted" else 1e-6
        nats = pytest.approx(json.loads(of_run)["nats_per_token"], rel=tolerance)
        assert figures["nats_per_token"] == nats
        assert figures["step"] == (0 if kind == "converted" else 40)
    elif job in ("train", "finetune"):
        assert checkpoint_store(str(tmp_path / "out")).steps()[-1] == 2
    else:
        written = (tmp_path / "out").exists() or (tmp_path / "out.npz").exists()
        assert written == (job != "verify")


@pytest.mark.slow
def test_only_a_run_is_watched(model_folders, data_folder):
    folder = model_folders["copied checkpoint"]
    finished = run_txl("evaluate", "--workdir", folder, "--data", data_folder, "--watch")
    assert finished.returncode == 2
    assert "Only a run gets new checkpoints." in error_lines(finished)[0]
