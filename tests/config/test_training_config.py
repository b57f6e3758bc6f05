"""Rows of a replica."""

import pytest

from txl_tf.config.training_config import TrainingConfig


@pytest.mark.parametrize(
    ("num_replicas", "num_parts", "rows"),
    [(1, 1, 24), (16, 1, 2), (8, 1, 3), (8, 2, 4), (2, 5, 15)],
)
def test_rows_that_cannot_be_shared_out_are_made_up(num_replicas, num_parts, rows):
    config = TrainingConfig(
        global_batch_size=24, num_steps=1, gradient_accumulation_steps=num_parts
    )
    assert config.rows_per_replica(num_replicas) == rows
