"""Checksums of batches, which show every change of the tokens."""

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.training.step_records import batch_checksum


def batch_of(num_rows=6, length=11, seed=0):
    tokens = np.random.default_rng(seed).integers(0, 300_000, [num_rows, length + 1], dtype="int32")
    return tokens[:, :-1], tokens[:, 1:]


def checksum_of(token_ids, target_ids, rows=None, num_counted=6):
    """The checksum share of some rows of a batch; the first rows count."""
    rows = np.arange(len(token_ids)) if rows is None else rows
    share = batch_checksum(
        tf.constant(token_ids),
        tf.constant(target_ids),
        tf.constant(rows, tf.int32),
        tf.constant(rows < num_counted),
    )
    return int(share.numpy().view(np.uint32))


@pytest.mark.parametrize("num_shares", [1, 2, 3, 6])
def test_checksums_of_replicas_add_up_to_the_checksum_of_the_real_rows(num_shares):
    token_ids, target_ids = batch_of()
    shares = [
        checksum_of(token_ids[rows], target_ids[rows], rows, num_counted=4)
        for rows in np.split(np.arange(6), num_shares)
    ]
    assert sum(shares) % 2**32 == checksum_of(token_ids[:4], target_ids[:4])


def test_every_change_of_one_token_and_every_swap_shows():
    token_ids, target_ids = batch_of()
    checksums = [checksum_of(token_ids, target_ids)]
    for part, row, position in np.ndindex(2, *token_ids.shape):
        arrays = [token_ids.copy(), target_ids.copy()]
        arrays[part][row, position] += 1
        checksums.append(checksum_of(*arrays))
    for row in range(1, 6):
        order = np.arange(6)
        order[[0, row]] = row, 0
        checksums.append(checksum_of(token_ids[order], target_ids[order]))
    assert len(set(checksums)) == len(checksums)
