"""Model of a training run or converted folder, with its weights and tokenizer."""

import numpy as np
import pytest

from pipelines.analysis.context import read_runs
from pipelines.workdir import Workdir
from tests.pipelines.conftest import EXPERIMENT
from tests.slow_case import slow_case
from tests.toy_batches import ToyBatches, strategy_of, toy_experiment, toy_tokens
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.model_folder import build_model, open_model
from txl_tf.run import identity
from txl_tf.training.checkpoints import CheckpointStore
from txl_tf.training.trainer import Trainer


@pytest.mark.parametrize("average_from", [slow_case(None), 2])
def test_they_are_the_averages_where_the_run_has_them(average_from, tmp_path):
    experiment = toy_experiment(
        training={
            "num_steps": 3,
            "num_targets": 2,
            "average_weights_from_step": average_from,
        },
        optimizer={"learning_rate": 3e-2},
    )
    batches = ToyBatches(toy_tokens(), 4)
    trainer = Trainer(experiment, strategy_of(1), batches.dataset_function)
    list(trainer.run())
    workdir = Workdir(tmp_path)
    data = {
        "fingerprint": "0",
        "corpus": "toy",
        "tokenizer": "toy",
        "tokenizer_sha256": "0",
        "vocabulary_size": experiment.model.vocabulary_size,
    }
    workdir.begin(experiment, data)
    CheckpointStore(workdir.checkpoints, identity(experiment, data)).save(3, trainer.state())
    step, weights = open_model(workdir.folder).read_weights()
    assert step == 3
    assert weights.keys() == {variable.path for variable in trainer.model.weights}
    for path, array in trainer.inference_weights().items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)
    table = trainer.model.embedding.tables[0]
    is_averaged = not np.array_equal(weights[table.path], table.numpy())
    assert is_averaged == (average_from is not None)
    build_model(experiment.model, weights)


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
