"""Attention with the relative positions of Transformer-XL: sinusoids, projected by distance.

Shapes end the names of some tensors: K key length, N heads, H head width. Further letters in this
module: D hidden width.
"""

import keras
from keras import ops

from txl_tf.layers.attention.memory_attention import MemoryAttention, check_call
from txl_tf.layers.attention.projections import DistanceKeys
from txl_tf.layers.configured_layer import projection_of


@keras.saving.register_keras_serializable(package="txl_tf")
class RelativeAttention(MemoryAttention):
    """Multi-head attention with the positions of Transformer-XL.

    Scores are the four terms of Dai et al. (2019), Section 3.3: (a) content
    and content, (b) content and position, (c) content bias `u`, (d) position
    bias `v`, computed as

        ((q + u) . k + relative_shift((q + v) . r)) / sqrt(H)

    where `r`, the projection of the position encoding, is computed once per distance instead of
    once per pair (Appendix B).

    Args:
        own_biases: bool. If `True`, the layer has its own biases `u` and `v`; otherwise they are
            call arguments, and several layers can share them.
        **kwargs: other arguments of `MemoryAttention`.

    Call arguments besides the ones of `MemoryAttention`:
        position_encoding: float tensor `(K, D)`; row `j` encodes the distance
            `K - 1 - j`. In the place of `distances`.
        content_bias: float tensor `(N, H)`, without `own_biases`.
        position_bias: float tensor `(N, H)`, without `own_biases`.
    """

    _arguments = (*MemoryAttention._arguments, "own_biases")

    def __init__(self, num_heads, head_dim, *, own_biases=True, **kwargs):
        super().__init__(num_heads, head_dim, **kwargs)
        self.own_biases = own_biases

    def build(self, inputs_shape, **other_shapes):
        super().build(inputs_shape)
        self.position = projection_of(
            self, self.num_heads * self.head_dim, "position", inputs_shape[-1]
        )
        if self.own_biases:
            self.content_bias = self._weight("content_bias", (self.num_heads, self.head_dim))
            self.position_bias = self._weight("position_bias", (self.num_heads, self.head_dim))

    def call(
        self,
        inputs,
        position_encoding=None,
        memory=None,
        attention_mask=None,
        content_bias=None,
        position_bias=None,
        dropout_seed=None,
        training=False,
        return_probabilities=False,
        kept=None,
        distances=None,
        attend=None,
    ):
        check_call(
            position_encoding=position_encoding,
            memory=memory,
            attention_mask=attention_mask,
            content_bias=content_bias,
            return_probabilities=return_probabilities,
            kept=kept,
            distances=distances,
            attend=attend,
            own_biases=self.own_biases,
        )
        content_bias_NH, position_bias_NH = self.biases(content_bias, position_bias)
        if distances is None:
            # All rows share the distances: K projections, where keys need B * K.
            distances = self.keys_of_distances(ops.shape(position_encoding)[0], position_encoding)
        projections = self._projections(inputs, memory, kept, distances)._replace(
            content_bias=content_bias_NH, position_bias=position_bias_NH
        )
        return self._attended(
            projections, attention_mask, dropout_seed, training, return_probabilities, attend
        )

    def biases(self, content_bias=None, position_bias=None):
        """Returns both biases `(N, H)`, the layer's own or the arguments, in the compute dtype."""
        if self.own_biases:
            content_bias, position_bias = self.content_bias, self.position_bias
        return [ops.cast(bias, self.compute_dtype) for bias in (content_bias, position_bias)]

    def keys_of_distances(self, key_length, position_encoding):
        """Computes the `DistanceKeys` of `K` distances.

        Row `j` of `position_encoding`, float `(K, D)`, encodes the distance `K - 1 - j`.
        """
        keys_KNH = self.split_heads(self.position(position_encoding[None]))[0]
        return DistanceKeys.from_distances(keys_KNH)
