"""Attention with the learned relative positions of Shaw et al. (2018).

Shapes end the names of some tensors: K key length, N heads, H head width. A further letter in this
module: P learned distances.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.attention.memory_attention import MemoryAttention
from txl_tf.layers.attention.projections import DistanceKeys


@keras.saving.register_keras_serializable(package="txl_tf")
class ShawAttention(MemoryAttention):
    """Multi-head attention with the relative positions of Shaw et al. (2018).

    Scores have the form of Dai et al. (2019), Section 3.3, with a learned vector `a` for every
    distance and head in the place of projection and encoding. With biases, as in the official
    PyTorch code of Dai et al., they are

        ((q + u) . k + relative_shift(q . a + b)) / sqrt(H)

    with a learned number `b` for every distance and head. Without, as in the paper's text, only
    two of the four terms remain: `(q . k + relative_shift(q . a)) / sqrt(H)`. Distances from
    `P - 1` on share the last vector and number.

    Args:
        num_positions: int. Number of learned distances `P`.
        has_biases: bool. If `True`, scores have the terms of `u` and `b`.
        **kwargs: other arguments of `MemoryAttention`.

    References:
     - [Shaw et al., 2018](https://arxiv.org/abs/1803.02155)
    """

    _arguments = (*MemoryAttention._arguments, "num_positions", "has_biases")

    def __init__(self, num_heads, head_dim, num_positions, has_biases=True, **kwargs):
        super().__init__(num_heads, head_dim, **kwargs)
        self.num_positions = num_positions
        self.has_biases = has_biases

    def build(self, inputs_shape, **other_shapes):
        super().build(inputs_shape)
        num_positions, heads = self.num_positions, (self.num_heads, self.head_dim)
        if self.has_biases:
            self.content_bias = self._weight("content_bias", heads)
        self.distance_keys = self._weight("distance_keys", (num_positions, *heads))
        if self.has_biases:
            self.distance_bias = self._weight("distance_bias", (num_positions, self.num_heads))

    def _projections(self, inputs, memory, kept, distances):
        projections = super()._projections(inputs, memory, kept, distances)
        if distances is None:
            distances = self.keys_of_distances(ops.shape(projections.key)[1])
            projections = projections._replace(distances=distances)
        if not self.has_biases:
            return projections
        return projections._replace(content_bias=ops.cast(self.content_bias, self.compute_dtype))

    def keys_of_distances(self, key_length, position_encoding=None):
        """Computes the `DistanceKeys` of `K` distances from the learned tables."""
        keys_KNH, scores_KN = self._by_distance(self.distance_keys, key_length), None
        if self.has_biases:
            scores_KN = self._by_distance(self.distance_bias, key_length) * self.score_scale
        return DistanceKeys.from_distances(keys_KNH, scores_KN)

    def _by_distance(self, table, key_length):
        """Returns the rows of a learned table for the distances `K - 1` to 0."""
        rows = functional.distances_to_end(key_length, self.num_positions)
        return ops.cast(ops.take(table, rows, axis=0), self.compute_dtype)
