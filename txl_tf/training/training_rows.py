"""The rows that a replica trains on in one step.

Shape letters used in this module: B rows, T segment length.
"""

from typing import NamedTuple

import tensorflow as tf

from txl_tf.models.memory import Memory


class Rows(NamedTuple):
    """What is needed to train on some rows; every tensor has an axis of rows first.

    Attributes:
        token_ids: int32 tensor `(B, T)`.
        target_ids: int32 tensor `(B, T)`.
        document_starts: bool tensor `(B, T)`, true for the first token of each
            document; all false where documents are not told apart.
        memory: `Memory` of the segments before.
        dropout_seeds: int32 tensor `(B, 2)`.
        weights: float32 tensor `(B,)`. 1, or 0 for rows that are only padding.
    """

    token_ids: tf.Tensor
    target_ids: tf.Tensor
    document_starts: tf.Tensor
    memory: Memory
    dropout_seeds: tf.Tensor
    weights: tf.Tensor
