"""A checksum of the tokens that a step was trained on.

Letters: B rows, T segment length.
"""

import numpy as np
import tensorflow as tf

_MULTIPLIER = 0x9E3779B1
_ROW_MULTIPLIER = 0x85EBCA6B
_TARGET_MULTIPLIER = 0xC2B2AE35


def batch_checksum(
    token_ids: tf.Tensor, target_ids: tf.Tensor, rows: tf.Tensor, is_counted: tf.Tensor
) -> tf.Tensor:
    """Computes a replica's share of the checksum of a batch, on the device.

    The checksum is a sum over tokens, positions and rows modulo 2**32, so the
    shares of all replicas add up to it however the rows are dealt out. Every
    factor is odd, so that a change of any one token changes it.

    Args:
        token_ids: int32 tensor `(B, T)`.
        target_ids: int32 tensor `(B, T)`.
        rows: int32 tensor `(B,)`. Each row's place in the global batch.
        is_counted: bool tensor `(B,)`. False for rows that are only padding.

    Returns:
        int32 scalar tensor; its bits are those of the unsigned number.
    """
    factors = tf.constant(_position_factors(token_ids.shape[1]).view(np.int32))
    target_factor = tf.constant(np.uint32(_TARGET_MULTIPLIER).astype(np.int32))
    row_factor = tf.constant(np.uint32(_ROW_MULTIPLIER).astype(np.int32))
    sums = tf.reduce_sum((token_ids + 1 + (target_ids + 1) * target_factor) * factors, axis=1)
    sums *= 2 * (rows * row_factor) + 1  # [B]
    return tf.reduce_sum(tf.where(is_counted, sums, 0))


def array_checksum(token_ids: np.ndarray, target_ids: np.ndarray) -> int:
    """Computes the checksum of a whole global batch, on the host.

    Args:
        token_ids: int array `(B, T)`.
        target_ids: int array `(B, T)`.

    Returns:
        The checksum, between 0 and 2**32.
    """
    inputs, targets = (ids.astype(np.uint32) + np.uint32(1) for ids in (token_ids, target_ids))
    factors = _position_factors(token_ids.shape[1])
    rows = np.arange(len(token_ids), dtype=np.uint32) * np.uint32(_ROW_MULTIPLIER)
    sums = (inputs + targets * np.uint32(_TARGET_MULTIPLIER)) * factors
    sums = sums.sum(axis=1, dtype=np.uint32) * (np.uint32(2) * rows + np.uint32(1))
    return int(sums.sum(dtype=np.uint32))


def _position_factors(length: int) -> np.ndarray:
    """Odd factors that differ by position."""
    return np.cumprod(np.full(length, _MULTIPLIER, np.uint32), dtype=np.uint32)
