"""Tensors that the attention of one layer computes from.

Shapes end the names of tensors: B rows, T segment length, M memory length, K = M + T key length,
N heads, H head width, J = K + 1 columns of distances.
"""

from typing import Any, NamedTuple, Self

from keras import ops


class KeysAndValues(NamedTuple):
    """Keys `(B, N, H, M)` and values `(B, N, M, H)` of remembered tokens, ready for products."""

    keys: Any
    values: Any


class DistanceKeys(NamedTuple):
    """Keys of all distances, `(N, H, J)`, and their scores `(N, 1, J)`, the same for all queries.

    Column `1 + j` is the distance `K - 1 - j`. Column 0 belongs to no distance, and
    `functional.shift_padded` drops it.
    """

    keys: Any
    scores: Any = None

    @classmethod
    def from_distances(cls, keys_KNH: Any, scores_KN: Any = None) -> Self:
        """Arranges the keys and the optional scores of the distances `K - 1` to 0."""
        column_0 = [[0, 0], [0, 0], [1, 0]]
        keys_NHJ = ops.pad(ops.transpose(keys_KNH, [1, 2, 0]), column_0)
        if scores_KN is None:
            return cls(keys_NHJ)
        return cls(keys_NHJ, ops.pad(ops.transpose(scores_KN)[:, None], column_0))


class Projections(NamedTuple):
    """Queries, keys and values of a segment, and the terms of positions.

    Attributes:
        query: float tensor `(B, T, N * H)`.
        key: float tensor `(B, T, N * H)`, or `(B, K, N * H)` with the hidden states of memory.
        value: float tensor of the shape of `key`.
        content_bias: optional `(N, H)`, added to the queries for contents.
        position_bias: optional `(N, H)`, added to the queries for distances.
        distances: optional `DistanceKeys`; without them no term depends on distances.
        kept: optional keys and values of memory, as the operator holds them. `OneToken` takes a
            pair of `KeysAndValues`, of memory and of recent tokens. `None` if memory holds hidden
            states.
    """

    query: Any
    key: Any
    value: Any
    content_bias: Any = None
    position_bias: Any = None
    distances: DistanceKeys | None = None
    kept: Any = None
