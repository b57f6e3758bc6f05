"""Attention with a learned vector for every distance.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, N heads, H head width, P learned distances.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.distance_keys import DistanceKeys
from txl_tf.layers.memory_attention import MemoryAttention


@keras.saving.register_keras_serializable(package="txl_tf")
class ShawAttention(MemoryAttention):
    """Multi-head attention with the relative positions of Shaw et al. (2018).

    In the form that Dai et al. (2019), Section 4.2, compare with: scores are

        ((q + u) . k + relative_shift(q . a + b)) / sqrt(H)

    with a learned vector `a` and a learned number `b` for every distance and
    head. Distances from `P - 1` on share the last of them.

    Args:
        num_heads: int. Number of heads `N`.
        head_dim: int. Width `H` of one head.
        num_positions: int. Number of learned distances `P`.
        dropout: float in `[0, 1)`. Rate on attention probabilities.
        kernel_initializer: initializer of all weights. Defaults to a normal
            distribution of stddev 0.02.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, T, D)`. The current segment.
        memory: optional float tensor `(B, M, D)`.
        attention_mask: boolean tensor that broadcasts to `(B, N, T, K)`; True
            where attention is allowed.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. Whether dropout is active.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If a size is not positive.

    References:
     - [Shaw et al., 2018](https://arxiv.org/abs/1803.02155)
    """

    def __init__(
        self, num_heads, head_dim, num_positions, dropout=0.0, kernel_initializer=None, **kwargs
    ):
        super().__init__(num_heads, head_dim, dropout, kernel_initializer, **kwargs)
        if num_positions <= 0:
            raise ValueError(
                f"`num_positions` must be positive. Received: num_positions={num_positions}"
            )
        self.num_positions = num_positions

    def build(
        self, inputs_shape, memory_shape=None, attention_mask_shape=None, dropout_seed_shape=None
    ):
        self._build_projections(inputs_shape[-1])
        self.content_bias = self._weight("content_bias", (self.num_heads, self.head_dim))
        self.distance_keys = self._weight(
            "distance_keys", (self.num_positions, self.num_heads, self.head_dim)
        )
        self.distance_bias = self._weight("distance_bias", (self.num_positions, self.num_heads))

    def call(self, inputs, memory=None, attention_mask=None, dropout_seed=None, training=False):
        return super().call(inputs, memory, attention_mask, dropout_seed, training)

    def _scores(self, query, key):
        distances = functional.distances_to_end(ops.shape(key)[1], self.num_positions)
        distance_keys = ops.cast(
            ops.take(self.distance_keys, distances, axis=0), self.compute_dtype
        )  # [K, N, H]
        distance_bias = ops.cast(
            ops.take(self.distance_bias, distances, axis=0), self.compute_dtype
        )  # [K, N]
        content_bias = ops.cast(self.content_bias, self.compute_dtype)
        content_scores = ops.einsum("btnh,bknh->bntk", query + content_bias, key)
        distance_scores = ops.einsum("btnh,knh->bntk", query, distance_keys)
        distance_scores = distance_scores + ops.transpose(distance_bias)[None, :, None]
        scores = content_scores + functional.relative_shift(distance_scores)
        return scores * self.head_dim**-0.5

    def queries(self, scaled_query):
        """What is compared with contents, and what with distances.

        Args:
            scaled_query: float tensor `(B, T, N * H)`, what
                `scaled_query_kernel` takes inputs to.

        Returns:
            Tuple of two float tensors `(B, T, N, H)`, divided by `sqrt(H)`.
        """
        query = self.split_heads(scaled_query)
        content_bias = ops.cast(self.content_bias, self.compute_dtype)
        return query + content_bias * self.head_dim**-0.5, query

    def project_distances(self, key_length, encoding=None):
        """The keys of all distances.

        Args:
            key_length: int. `K`.
            encoding: has no influence; the keys are learned.

        Returns:
            `DistanceKeys` with scores.
        """
        distances = functional.distances_to_end(key_length, self.num_positions)
        keys = ops.transpose(ops.take(self.distance_keys, distances, axis=0), [1, 2, 0])
        scores = ops.transpose(ops.take(self.distance_bias, distances, axis=0))[:, None]
        padding = [[0, 0], [0, 0], [1, 0]]
        return DistanceKeys(
            ops.pad(ops.cast(keys, self.compute_dtype), padding),  # [N, H, K + 1]
            ops.pad(ops.cast(scores * self.head_dim**-0.5, self.compute_dtype), padding),
        )

    def get_config(self):
        return {**super().get_config(), "num_positions": self.num_positions}
