"""The weights that the jobs read from a run."""

import numpy as np
import pytest

from pipelines.trained_model import build_model, read_weights
from pipelines.workdir import Workdir, identity
from tests.slow_case import slow_case
from tests.toy_batches import ToyBatches, strategy_of, toy_experiment, toy_tokens
from txl_tf.training.checkpoint_store import CheckpointStore
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
    step, weights = read_weights(workdir, None)
    assert step == 3
    assert weights.keys() == {variable.path for variable in trainer.model.weights}
    for path, array in trainer.inference_weights().items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)
    table = trainer.model.embedding.tables[0]
    is_averaged = not np.array_equal(weights[table.path], table.numpy())
    assert is_averaged == (average_from is not None)
    build_model(experiment.model, weights)
