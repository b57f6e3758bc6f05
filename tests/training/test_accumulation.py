"""Reading the rows in parts, and rows that are made up, change nothing but rounding."""

import numpy as np
import pytest

from tests.toy_batches import (
    ToyBatches,
    largest_relative_difference,
    strategy_of,
    toy_experiment,
    toy_tokens,
)
from txl_tf.training.trainer import Trainer

NUM_STEPS = 4
# Each trains twice, in programs of its own.
pytestmark = pytest.mark.slow


def trained(num_rows, num_replicas=1, **training):
    batches = ToyBatches(toy_tokens(), num_rows, restarts=[(2, 1)])
    experiment = toy_experiment(
        model={"dropout": 0.2, "attention_dropout": 0.1},
        training={"num_steps": NUM_STEPS, "global_batch_size": num_rows, **training},
        optimizer={"clip_norm": 1.0},
    )
    trainer = Trainer(experiment, strategy_of(num_replicas), batches.dataset_function)
    records = [report.records[0] for report in trainer.run()]
    return records, trainer.arrays()


def assert_same_run(one, other, tolerance):
    for first, second in zip(one[0], other[0], strict=True):
        assert second.checksum == first.checksum
        assert second.nats_per_token == pytest.approx(first.nats_per_token, rel=tolerance)
        assert second.gradient_norm == pytest.approx(first.gradient_norm, rel=tolerance)
    assert largest_relative_difference(one[1], other[1]) <= 10 * tolerance


def test_parts_of_made_up_rows_and_blocks_computed_again_train_the_same_with_dropout():
    alone = trained(5)
    padded = trained(5, 2, gradient_accumulation_steps=2, rematerialize=True)
    assert_same_run(alone, padded, 1e-6)
    assert padded[1]["memory/valid_length"].shape == (5,)
    # Masks belong to rows, not to replicas. That means something only if something was dropped.
    dropped, others = (run[1]["memory/states/000"] == 0.0 for run in (alone, padded))
    np.testing.assert_array_equal(dropped, others)
    assert 0.1 < np.mean(dropped) < 0.3


def test_parts_of_rematerialized_blocks_compile_to_the_same():
    options = {"gradient_accumulation_steps": 4, "rematerialize": True, "jit_compile": True}
    assert_same_run(trained(8), trained(8, **options), 1e-5)
