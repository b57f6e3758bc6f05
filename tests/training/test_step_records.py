"""The checksum of a batch: the same however it is dealt out, another for any other tokens."""

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.training.train_step import (
    ROW_MULTIPLIER,
    TARGET_MULTIPLIER,
    batch_checksum,
    position_factors,
)


def array_checksum(token_ids, target_ids):
    """The checksum of a whole batch on the host."""
    inputs, targets = (ids.astype(np.uint32) + np.uint32(1) for ids in (token_ids, target_ids))
    rows = np.arange(len(token_ids), dtype=np.uint32) * np.uint32(ROW_MULTIPLIER)
    sums = (inputs + targets * np.uint32(TARGET_MULTIPLIER)) * position_factors(inputs.shape[1])
    sums = sums.sum(axis=1, dtype=np.uint32) * (np.uint32(2) * rows + np.uint32(1))
    return int(sums.sum(dtype=np.uint32))


def batch_of(num_rows=6, length=11, seed=0):
    tokens = np.random.default_rng(seed).integers(0, 300_000, [num_rows, length + 1], dtype="int32")
    return tokens[:, :-1], tokens[:, 1:]


def on_device(token_ids, target_ids, rows, is_counted=None):
    is_counted = np.ones(len(rows), bool) if is_counted is None else is_counted
    share = batch_checksum(
        tf.constant(token_ids),
        tf.constant(target_ids),
        tf.constant(rows, tf.int32),
        tf.constant(is_counted),
    )
    return int(share.numpy().view(np.uint32))


@pytest.mark.parametrize("num_shares", [1, 2, 3, 6])
def test_the_shares_of_replicas_add_up_to_that_of_the_whole(num_shares):
    token_ids, target_ids = batch_of()
    shares = [
        on_device(token_ids[rows], target_ids[rows], rows)
        for rows in np.split(np.arange(6), num_shares)
    ]
    assert sum(shares) % 2**32 == array_checksum(token_ids, target_ids)


def test_rows_that_do_not_count_are_left_out():
    token_ids, target_ids = batch_of()
    counted = np.arange(6) < 4
    share = on_device(token_ids, target_ids, np.arange(6), counted)
    assert share == array_checksum(token_ids[:4], target_ids[:4])


def test_every_change_of_one_token_and_every_swap_shows():
    token_ids, target_ids = batch_of()
    seen = {array_checksum(token_ids, target_ids)}
    num_cases = 1
    for part in range(2):
        for row in range(6):
            for position in range(11):
                arrays = [token_ids.copy(), target_ids.copy()]
                arrays[part][row, position] += 1
                seen.add(array_checksum(*arrays))
                num_cases += 1
    for row in range(1, 6):
        order = np.arange(6)
        order[[0, row]] = row, 0
        seen.add(array_checksum(token_ids[order], target_ids[order]))
        num_cases += 1
    assert len(seen) == num_cases
