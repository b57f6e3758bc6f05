"""The examples in Python of the docstrings and of the page of the library run unchanged."""

import importlib
import itertools
import json
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from tests.convert.goldens import FOLDER as GOLDEN
from tests.documented_code import blocks_of_python, examples_of_docstrings
from tests.generation.models import expressive, prompt
from tests.pipelines.small_experiments import MODEL
from tests.pipelines.txl_process import run_txl
from tests.slow_case import slow_case
from tests.small_models import write_run
from tests.source_tree import ROOT


def examples_of_library():
    """Returns the blocks of Python in the page of the library, in their order."""
    return blocks_of_python((ROOT / "txl_tf" / "README.md").read_text())


def small_model(**changes):
    model = expressive(**changes)
    return {"model": model, "config": model.config, "memory_length": model.config.memory_length}


# Functions that create the names that an example uses, besides the names of its module.
EXAMPLE_NAMES = {
    "GenerationSession": lambda: {**small_model(), "prompt_ids": prompt(7, num_rows=1)},
    "InferenceEngine": lambda: {**small_model(), "token_ids": prompt(11, num_rows=1)},
    "StatefulTransformerXL": lambda: trained_model(),
    "TextTask": lambda: fine_tuned_run("runs/reviews"),
    "TransformerXLWithHead": lambda: {"texts": ["some text", "a text"], "labels": [1, 0]},
    "load_model": lambda: {"token_ids": prompt(5, num_rows=1)},
}


def fine_tuned_run(workdir):
    """Writes a run that is fine-tuned for one step, in the folder of the example; adds no name."""
    rows = [{"text": "A fine book.", "label": "good"}, {"text": "Too long.", "label": "bad"}]
    pathlib.Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {"global_batch_size": 1, "num_steps": 1}
    pathlib.Path("model.json").write_text(json.dumps({"model": MODEL, "training": training}))
    short = ("--set", "training.num_steps=1", "--set", "training.jit_compile=false")
    files = ("--config", "model.json", "--train", "train.jsonl", "--workdir", workdir)
    run_txl("finetune", *files, *short, cwd=pathlib.Path.cwd())
    return {}


def trained_model():
    config = small_model(dropout=0.0)["config"]
    ids = prompt(config.segment_length + 1, num_rows=16)
    dataset = tf.data.Dataset.from_tensors((ids[:, :-1], ids[:, 1:])).repeat(2)
    return {"config": config, "ordered_dataset": dataset}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Writes the files and folders that the examples read."""
    folder = tmp_path_factory.mktemp("files")
    shutil.copytree(GOLDEN / "tf1_wt103_like", folder / "tf_wt103" / "model")
    write_run(folder / "made", txl_tf.data.ByteTokenizer(), "a text of bytes " * 40)
    for name in ("enwik8", "mine"):
        shutil.copytree(folder / "made" / "run", folder / "runs" / name)
    txl_tf.data.prepare_dataset(
        {"train": [b"a text of bytes " * 40]},
        txl_tf.data.ByteTokenizer(),
        str(folder / "data"),
        "example",
    )
    return folder


@pytest.fixture
def folder(files, tmp_path, monkeypatch):
    """Copies the files to a folder of the test, in which its example runs."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(files, tmp_path, dirs_exist_ok=True)


def run_example(code, names):
    names = {"keras": keras, "np": np, "text": b"one two\none three\n", "txl_tf": txl_tf, **names}
    exec(compile(code, "example", "exec"), names)
    return names


# The examples of the harness need its extra; its own tests run them.
DOCSTRINGS = {
    name: code
    for name, code in examples_of_docstrings().items()
    if not name.startswith("txl_tf.harness.")
}
# These examples train models or compile several programs.
SLOW = {
    "txl_tf.causal_lm.text_session.TextSession",
    "txl_tf.causal_lm.text_task.TextTask",
    "txl_tf.generation.session.GenerationSession",
    "txl_tf.models.headed.TransformerXLWithHead",
    "txl_tf.models.stateful.StatefulTransformerXL",
}


@pytest.mark.parametrize("name", [slow_case(n) if n in SLOW else n for n in DOCSTRINGS])
def test_the_example_of_a_docstring_runs(name, folder):
    module, _, documented = name.rpartition(".")
    inputs = EXAMPLE_NAMES.get(documented, dict)()
    public = vars(importlib.import_module(module))
    run_example(DOCSTRINGS[name], {**public, "folder": str(folder / "data"), **inputs})


@pytest.mark.slow
def test_the_python_of_the_library_runs(folder):
    names = {}
    for code in examples_of_library():
        names = run_example(code, names)
    assert names["lm"].generate("Row ", max_tokens=5).startswith("Row ")
    assert txl_tf.load("converted/rows").model.count_params() == names["model"].count_params()
    batches = list(names["batches"].as_numpy_iterator())
    for (_, targets), (inputs, _) in itertools.pairwise(batches):
        np.testing.assert_array_equal(inputs[:, 0], targets[:, -1])
    assert len(batches) > 2
    outputs = names["task"].predict(names["inputs"], verbose=0)
    # The last block begins a new process, as it loads the saved task.
    np.savez("inputs", **names["inputs"])
    check = 'import numpy as np\ninputs = dict(np.load("inputs.npz"))\n'
    check += "print(task.predict(inputs, verbose=0).tolist())"
    program = [sys.executable, "-c", f"{examples_of_library()[-1]}\n{check}"]
    finished = subprocess.run(program, capture_output=True, text=True, check=True)
    np.testing.assert_allclose(json.loads(finished.stdout), outputs, rtol=0, atol=1e-6)
    assert names["nll"].shape == (1, len(names["tokens"]) - 1)
    np.testing.assert_allclose(np.exp(names["log_probs"]).sum(), 1.0, atol=1e-5)
