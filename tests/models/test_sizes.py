"""The cost of a checkpoint, beside one that is written."""

import pytest
import tensorflow as tf

from pipelines.configs import NAMED_EXPERIMENTS
from tests.slow_case import slow_case
from tests.toy_batches import toy_experiment
from txl_tf.config.experiment import OptimizerConfig
from txl_tf.models.sizes import NOTICE_SECONDS, CheckpointCost
from txl_tf.training.trainer import Trainer


@pytest.mark.parametrize(
    ("name", "average"),
    [("adam", None), slow_case("adamw", None), ("sgd", 1), slow_case("lamb", None)],
)
def test_the_bytes_are_those_of_the_state(name, average):
    experiment = toy_experiment()
    experiment = experiment.replace(
        model=experiment.model.replace(hidden_dim=64, intermediate_dim=512, memory_length=32),
        optimizer=OptimizerConfig(name=name, learning_rate=1e-3),
        training=experiment.training.replace(average_weights_from_step=average),
    )
    trainer = Trainer(experiment, tf.distribute.get_strategy(), dataset_function=None)
    written = sum(array.nbytes for array in trainer.state().values())
    assert CheckpointCost.of(experiment).num_bytes == pytest.approx(written, rel=0.02)


def test_large_checkpoints_do_not_fit_the_notice_and_small_ones_do():
    large = CheckpointCost.of(NAMED_EXPERIMENTS["lm1b_large"]())
    assert large.num_bytes > 10e9
    assert large.upload_seconds > NOTICE_SECONDS
    assert not large.fits_notice
    assert CheckpointCost.of(NAMED_EXPERIMENTS["enwik8_base"]()).fits_notice
