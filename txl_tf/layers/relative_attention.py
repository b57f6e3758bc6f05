"""Relative multi-head attention for Transformer-XL.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, N heads, H head width.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.hashed_bits import random_keys
from txl_tf.layers.attention import DistanceKeys, MemoryAttention
from txl_tf.layers.visible_keys import VisibleKeys


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
        num_heads: int. Number of heads `N`.
        head_dim: int. Width `H` of one head.
        own_biases: bool. If `True`, the layer has its own biases `u` and `v`; otherwise they are
            call arguments, and several layers can share them.
        **kwargs: other keyword arguments passed to `MemoryAttention`.

    Call arguments:
        position_encoding: float tensor `(K, D)`; row `j` encodes the distance
            `K - 1 - j`.
        attention_mask: as in `MemoryAttention`, or `VisibleKeys`, with which a kernel for TPUs
            attends.
        content_bias: float tensor `(N, H)`, without `own_biases`.
        position_bias: float tensor `(N, H)`, without `own_biases`.
        Others are as in `MemoryAttention`.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If `num_heads` or `head_dim` is not positive, or a bias is missing without
            `own_biases`.
    """

    def __init__(self, num_heads, head_dim, *, own_biases=True, **kwargs):
        super().__init__(num_heads, head_dim, **kwargs)
        self.own_biases = own_biases

    def build(self, inputs_shape, **other_shapes):
        super().build(inputs_shape)
        self.position = self._projection(
            inputs_shape[-1], self.num_heads * self.head_dim, "position"
        )
        if self.own_biases:
            self.content_bias = self._weight("content_bias", (self.num_heads, self.head_dim))
            self.position_bias = self._weight("position_bias", (self.num_heads, self.head_dim))

    def call(
        self,
        inputs,
        position_encoding,
        memory=None,
        attention_mask=None,
        content_bias=None,
        position_bias=None,
        dropout_seed=None,
        training=False,
    ):
        if isinstance(attention_mask, VisibleKeys):
            seed = self._dropout_seed(inputs, dropout_seed, training)
            biases = self.side_by_side_biases(content_bias, position_bias)
            return self._call_kernel(
                attention_mask, inputs, memory, position_encoding, biases, seed
            )
        return super().call(
            inputs,
            memory,
            attention_mask,
            dropout_seed,
            training,
            position_encoding=position_encoding,
            content_bias=content_bias,
            position_bias=position_bias,
        )

    def _dropout_seed(self, inputs, dropout_seed, training):
        """Returns the seed of each row, `None` where nothing is dropped."""
        if not training or self.dropout == 0:
            return None
        return self.probability_dropout.seeds_of_rows(ops.shape(inputs)[0], dropout_seed)

    def distance_table(self, position_encoding):
        """Projects the encodings `(K, D)` of all distances to keys `(K, N * H)`."""
        return self.position(position_encoding[None])[0]

    def side_by_side_biases(self, content_bias=None, position_bias=None):
        """Returns both biases in a kernel's layout, float32 `(2, N * H)`, from call arguments."""
        biases = self._biases(content_bias, position_bias)
        return ops.stack([ops.reshape(ops.cast(bias, "float32"), [-1]) for bias in biases])

    def _call_kernel(self, visible_keys, inputs, memory, position_encoding, biases, seed):
        # Imported here, as it needs TensorFlow and JAX.
        from txl_tf.tpu_kernels.attention_call import attend

        query = self.query(inputs)  # [B, T, N * H]
        num_rows, num_tokens, _ = query.shape
        plan = visible_keys.plan(query, self.num_heads, 0.0 if seed is None else self.dropout)
        hash_keys = ops.zeros((2, num_rows), "int32")
        if seed is not None:
            hash_keys = ops.cast(ops.stack(random_keys(seed)), "int32")
        attended = attend(
            plan,
            visible_keys.kernel.platform,
            visible_keys.first_keys(num_tokens),
            hash_keys,
            query,
            self._project_keys(self.key, inputs, memory),
            self._project_keys(self.value, inputs, memory),
            self.distance_table(position_encoding),
            biases,
        )
        return self.output_projection(attended)  # [B, T, D]

    def _scores(self, query, key, position_encoding, content_bias=None, position_bias=None):
        content_bias, position_bias = self._biases(content_bias, position_bias)
        # All rows share the distances: K projections, where keys need B * K.
        position = self.split_heads(self.position(position_encoding)[None])[0]  # [K, N, H]
        # Scale the queries: the scores are K / H times as many.
        scale = self.head_dim**-0.5
        # Terms (a) and (c) share one product, (b) and (d) the other.
        content_scores = self._products((query + content_bias) * scale, key)
        position = ops.transpose(position, [1, 2, 0])[None]  # [1, N, H, K]
        position_scores = self._products((query + position_bias) * scale, position)
        return content_scores, functional.relative_shift(position_scores)

    def queries(self, scaled_query, content_bias=None, position_bias=None):
        """Computes the queries for contents and for distances.

        Args:
            scaled_query: float tensor `(B, T, N * H)`, inputs times `scaled_query_kernel`.
            content_bias: as in a call.
            position_bias: as in a call.

        Returns:
            Tuple of two float tensors `(B, T, N, H)`, divided by `sqrt(H)`.
        """
        content_bias, position_bias = self._biases(content_bias, position_bias)
        query = self.split_heads(scaled_query)
        scale = self.head_dim**-0.5
        return query + content_bias * scale, query + position_bias * scale

    def project_distances(self, key_length, encoding):
        """Computes the keys of all distances.

        Args:
            key_length: int. `K`.
            encoding: float tensor `(K, D)`; row `j` encodes the distance
                `K - 1 - j`.

        Returns:
            `DistanceKeys`.
        """
        keys = self.split_heads(self.position(encoding)[None])[0]  # [K, N, H]
        keys = ops.transpose(keys, [1, 2, 0])
        return DistanceKeys(ops.pad(keys, [[0, 0], [0, 0], [1, 0]]))  # [N, H, K + 1]

    def _biases(self, content_bias, position_bias):
        if self.own_biases:
            content_bias, position_bias = self.content_bias, self.position_bias
        if content_bias is None or position_bias is None:
            raise ValueError(
                "A layer without biases of its own needs `content_bias` and `position_bias`. "
                f"Received: content_bias={content_bias}, position_bias={position_bias}"
            )
        return (
            ops.cast(content_bias, self.compute_dtype),
            ops.cast(position_bias, self.compute_dtype),
        )

    def get_config(self):
        return {**super().get_config(), "own_biases": self.own_biases}

    def score_terms(
        self,
        inputs,
        position_encoding,
        memory=None,
        content_bias=None,
        position_bias=None,
    ):
        """Computes the four terms (a) to (d) of the scores separately.

        Dai et al. (2019), Section 3.3. Their sum is the input of the softmax before the mask.

        Args:
            inputs: as in a call.
            position_encoding: as in a call.
            memory: as in a call.
            content_bias: as in a call.
            position_bias: as in a call.

        Returns:
            Tuple of four float tensors `(B, N, T, K)`, divided by `sqrt(H)`:
            (a) content and content, (b) content and position, (c) content bias,
            (d) position bias.
        """
        content_bias, position_bias = self._biases(content_bias, position_bias)
        scale = self.head_dim**-0.5
        query = self.split_heads(self.query(inputs)) * scale  # [B, T, N, H]
        key = self._project_keys(self.key, inputs, memory)
        key = self.split_heads(key)  # [B, K, N, H]
        position = self.split_heads(self.position(position_encoding)[None])[0]  # [K, N, H]

        def of_contents(queries):
            return ops.einsum("btnh,bknh->bntk", queries, key)

        def of_positions(queries):
            return functional.relative_shift(ops.einsum("btnh,knh->bntk", queries, position))

        zeros = ops.zeros_like(query)  # biases are equal for all queries
        return (
            of_contents(query),
            of_positions(query),
            of_contents(zeros + content_bias * scale),
            of_positions(zeros + position_bias * scale),
        )
