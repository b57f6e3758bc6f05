"""Model of a training run or converted folder, with its weights and tokenizer."""

import pytest

from pipelines.analysis.context import read_runs
from pipelines.workdir import Workdir
from tests.pipelines.conftest import EXPERIMENT
from txl_tf.config.experiment import ExperimentConfig

DATA = {
    "fingerprint": "f",
    "corpus": "toy",
    "tokenizer": "bytes",
    "tokenizer_sha256": "a",
    "vocabulary_size": 256,
}


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a", "others/b"], ["a", "b"]),
        (["study/a/seed-1/run", "study/b/seed-1/run"], ["a", "b"]),
        (["study/a/seed-1/run", "study/a/seed-2/run"], ["seed-1", "seed-2"]),
        (["study/a/1/run", "study/b/2/run", "run"], ["study/a/1/run", "study/b/2/run", "run"]),
        (["study/a/1/run", "study/a/b/2/run"], ["1", "b/2"]),
        (["a/x", "a/b/x"], ["a", "a/b"]),
    ],
)
def test_names(folders, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in folders:
        Workdir(folder).begin(ExperimentConfig.from_dict(EXPERIMENT), DATA)
    assert [run.name for run in read_runs(folders)] == names
