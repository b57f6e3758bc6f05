"""Multi-head attention over segment and memory, with the positions of Transformer-XL and others.

Shapes end the names of tensors: B rows, T segment length, M memory length, K = M + T key length,
N heads, H head width. Further letters in this module: D hidden width, P learned distances.
"""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.compiled_parts import compiled_part
from txl_tf.layers.feed_forward import ConfiguredLayer, SeededDropout, normal_unless, projection_of
from txl_tf.stateless_random import random_keys
from txl_tf.tpu_kernels.attention_plan import AttentionKernel, AttentionPlan, InferencePlan


@keras.saving.register_keras_serializable(package="txl_tf")
class MemoryAttention(ConfiguredLayer):
    """Multi-head attention over segment and memory, of Vaswani et al. (2017), Section 3.2.

    Queries come from the segment, keys and values from memory and segment, all by projections
    without bias. Scores are computed in the compute dtype, the softmax in at least float32.
    Positions must be part of `inputs` and `memory`; subclasses add terms for distances to the
    scores instead.

    Args:
        num_heads: int. Number of heads `N`.
        head_dim: int. Width `H` of one head.
        dropout: float in `[0, 1)`. Rate on attention probabilities.
        kernel_initializer: initializer of all weights. Defaults to a normal
            distribution of stddev 0.02.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Call arguments:
        inputs: float tensor `(B, T, D)`. The current segment.
        memory: optional float tensor `(B, M, D)`. The inputs of this layer for the `M` tokens
            before the segment. The caller stops its gradient.
        attention_mask: boolean tensor that broadcasts to `(B, N, T, K)`; True
            where attention is allowed.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. If `True`, dropout is active.
        return_probabilities: bool. If `True`, the probability of every key for every query is
            returned instead: `(B, N, T, K)`, float32, or float64 if the layer computes in it.

    Returns:
        Float tensor `(B, T, D)`.
    """

    _arguments: tuple[str, ...] = ("num_heads", "head_dim", "dropout", "kernel_initializer")

    def __init__(self, num_heads, head_dim, dropout=0.0, kernel_initializer=None, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.kernel_initializer = normal_unless(kernel_initializer)
        self.probability_dropout = SeededDropout(
            dropout, dtype=self.dtype_policy, name="probability_dropout"
        )

    def build(self, inputs_shape, **other_shapes):
        hidden_dim, width = inputs_shape[-1], self.num_heads * self.head_dim
        self.query = projection_of(self, width, "query", hidden_dim)
        self.key = projection_of(self, width, "key", hidden_dim)
        self.value = projection_of(self, width, "value", hidden_dim)
        self.output_projection = projection_of(self, hidden_dim, "output", width)

    def _weight(self, name, shape):
        return self.add_weight(shape=shape, initializer=self.kernel_initializer.clone(), name=name)

    def call(
        self,
        inputs,
        memory=None,
        attention_mask=None,
        dropout_seed=None,
        training=False,
        return_probabilities=False,
    ):
        query_BTNH = self.split_heads(self.query(inputs))
        scores_BNTK = (self._scores(query_BTNH, self._keys(inputs, memory)),)
        if return_probabilities:
            return self._softmax(scores_BNTK, attention_mask)
        weights_BNTK = self._weights(scores_BNTK, attention_mask, dropout_seed, training)
        attended_BNTH = ops.matmul(weights_BNTK, self._values(inputs, memory))
        return self.output_projection(self._join_heads(attended_BNTH))

    def _scores(self, query_BTNH, key_BNHK):
        return self._product(query_BTNH * self.head_dim**-0.5, key_BNHK)

    def _product(self, query_BTNH, key_BNHK):
        """Multiplies queries with keys; keys with `B = 1` serve all rows."""
        if self.num_heads > 1:
            return ops.matmul(ops.transpose(query_BTNH, [0, 2, 1, 3]), key_BNHK)
        # Without an axis of heads: on a CPU, TensorFlow 2.20 fuses this product with a sum and
        # crashes with one head.
        return ops.matmul(query_BTNH[:, :, 0], key_BNHK[:, 0])[:, None]

    def _weights(self, *arguments):
        """Returns probabilities with dropout, in the dtype of the product with the values."""
        if self.compute_dtype == "float32":
            # Nothing is cast, and TensorFlow's softmax is faster.
            return self._dropped_softmax(*arguments)
        return compiled_part(self._dropped_softmax)(*arguments)

    def _dropped_softmax(self, scores_BNTK, attention_mask, dropout_seed, training):
        probabilities_BNTK = ops.cast(
            self._softmax(scores_BNTK, attention_mask), self.compute_dtype
        )
        return self.probability_dropout(probabilities_BNTK, seed=dropout_seed, training=training)

    def _softmax(self, scores_BNTK, attention_mask):
        """Adds up the terms of the scores, masks the sum, and takes the softmax."""
        # In half precision, sums over thousands of keys lose small probabilities.
        score_BNTK = functional.at_least_float32(functools.reduce(operator.add, scores_BNTK))
        if attention_mask is not None:
            score_BNTK = functional.mask_scores(score_BNTK, attention_mask)
        return functional.softmax_over_keys(score_BNTK)

    def _keys(self, inputs, memory):
        key_BKNH = self.split_heads(self.project(self.key, inputs, memory))
        return ops.transpose(ops.transpose(key_BKNH, [0, 2, 1, 3]), [0, 1, 3, 2])  # BNHK

    def _values(self, inputs, memory):
        value_BKNH = self.split_heads(self.project(self.value, inputs, memory))
        return ops.transpose(value_BKNH, [0, 2, 1, 3])  # BNKH

    def project(self, projection, inputs, memory=None):
        """Projects memory and segment, `(B, K, N * H)`."""
        projected = projection(inputs)
        if memory is None or memory.shape[1] == 0:
            return projected
        # Two products, because a joint one would compute a gradient of the memory, which needs
        # none.
        of_memory = projection(ops.cast(memory, inputs.dtype))
        return ops.concatenate([of_memory, projected], axis=1)

    def split_heads(self, tensor):
        """Reshapes `(B, T, N * H)` to `(B, T, N, H)`."""
        return ops.reshape(tensor, [-1, ops.shape(tensor)[1], self.num_heads, self.head_dim])

    def _join_heads(self, attended_BNTH):
        width = self.num_heads * self.head_dim
        attended_BTNH = ops.transpose(attended_BNTH, [0, 2, 1, 3])
        return ops.reshape(attended_BTNH, [-1, ops.shape(attended_BTNH)[1], width])

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape


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

    Call arguments, besides those of `MemoryAttention`:
        position_encoding: float tensor `(K, D)`; row `j` encodes the distance
            `K - 1 - j`.
        attention_mask: as in `MemoryAttention`, or `VisibleKeys`, for attention by a kernel for
            TPUs, which returns no probabilities.
        content_bias: float tensor `(N, H)`, without `own_biases`.
        position_bias: float tensor `(N, H)`, without `own_biases`.

    Raises:
        ValueError: If a bias is missing without `own_biases`.
    """

    _arguments = (*MemoryAttention._arguments, "own_biases")

    def __init__(self, num_heads, head_dim, *, own_biases=True, **kwargs):
        super().__init__(num_heads, head_dim, **kwargs)
        self.own_biases = own_biases

    def build(self, inputs_shape, **other_shapes):
        super().build(inputs_shape)
        width = self.num_heads * self.head_dim
        self.position = projection_of(self, width, "position", inputs_shape[-1])
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
        return_probabilities=False,
    ):
        content_bias_NH, position_bias_NH = self.biases(content_bias, position_bias)
        if isinstance(attention_mask, VisibleKeys):
            attended = attention_mask.attend(
                self.query(inputs),
                self.project(self.key, inputs, memory),
                self.project(self.value, inputs, memory),
                self.distance_table(position_encoding),
                (content_bias_NH, position_bias_NH),
                *self._dropout_of_kernel(inputs, dropout_seed, training),
            )
            return self.output_projection(attended)
        scale = self.head_dim**-0.5  # on queries: there are K / H times as many scores
        query_BTNH = self.split_heads(self.query(inputs))
        key_BNHK = self._keys(inputs, memory)
        # All rows share the distances: K projections, where keys need B * K.
        position_KNH = self.split_heads(self.distance_table(position_encoding)[None])[0]
        position_NHK = ops.transpose(position_KNH, [1, 2, 0])
        # Terms (a) and (c) share one product, (b) and (d) the other.
        content_BNTK = self._product((query_BTNH + content_bias_NH) * scale, key_BNHK)
        distance_BNTK = self._product((query_BTNH + position_bias_NH) * scale, position_NHK[None])
        scores_BNTK = content_BNTK, functional.relative_shift(distance_BNTK)
        if return_probabilities:
            return self._softmax(scores_BNTK, attention_mask)
        weights_BNTK = self._weights(scores_BNTK, attention_mask, dropout_seed, training)
        attended_BNTH = ops.matmul(weights_BNTK, self._values(inputs, memory))
        return self.output_projection(self._join_heads(attended_BNTH))

    def biases(self, content_bias=None, position_bias=None):
        """Returns both biases `(N, H)`, the layer's own or those given, in the compute dtype."""
        if self.own_biases:
            content_bias, position_bias = self.content_bias, self.position_bias
        if content_bias is None or position_bias is None:
            raise ValueError(
                "A layer without biases of its own needs `content_bias` and `position_bias`. "
                f"Received: content_bias={content_bias}, position_bias={position_bias}"
            )
        return [ops.cast(bias, self.compute_dtype) for bias in (content_bias, position_bias)]

    def distance_table(self, position_encoding):
        """Projects the encodings `(K, D)` of all distances to keys `(K, N * H)`."""
        return self.position(position_encoding[None])[0]

    def _dropout_of_kernel(self, inputs, dropout_seed, training):
        """Returns the rate, 0 without dropout, and the rows' random keys, int32 `(2, B)`."""
        if not training or self.dropout == 0:
            return 0.0, ops.zeros((2, inputs.shape[0]), "int32")
        seeds = self.probability_dropout.seeds_of_rows(ops.shape(inputs)[0], dropout_seed)
        return self.dropout, ops.cast(ops.stack(random_keys(seeds)), "int32")


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

    def _scores(self, query_BTNH, key_BNHK):
        key_length = ops.shape(key_BNHK)[3]
        distance_KNH = self.of_distances(self.distance_keys, key_length)
        distance_BNTK = ops.einsum("btnh,knh->bntk", query_BTNH, distance_KNH)
        if self.has_biases:
            # A biased query needs one product; `q . k` and `u . k` apart would be two.
            query_BTNH = query_BTNH + ops.cast(self.content_bias, self.compute_dtype)
            # Added before the shift, so that a single shift serves both.
            bias_KN = self.of_distances(self.distance_bias, key_length)
            distance_BNTK = distance_BNTK + ops.transpose(bias_KN)[None, :, None]
        content_BNTK = self._product(query_BTNH, key_BNHK)
        return (content_BNTK + functional.relative_shift(distance_BNTK)) * self.head_dim**-0.5

    def of_distances(self, table, key_length):
        """Returns the rows of a learned table for the distances `K - 1` to 0."""
        rows = functional.distances_to_end(key_length, self.num_positions)
        return ops.cast(ops.take(table, rows, axis=0), self.compute_dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class VisibleKeys:
    """Attention mask of the kernels: each query sees the keys from its first one to itself."""

    kernel: AttentionKernel
    memory_length: int
    """`M`, places of memory."""
    valid_length: Any
    """Filled places of memory, int32 `(B,)`."""
    farthest: int | None = None
    """Largest distance that a query sees."""
    document_starts: Any = None
    """As in `functional.same_document_mask`, bool `(B, T)`."""
    segment_length: int | None = None
    """Tokens of a segment, if `T` is several segments: each is masked as if read alone."""
    num_unused: int = 0
    """Unused places at the front of memory."""

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        distances: Any,
        biases: Sequence[Any],
        dropout: float,
        hash_keys: Any,
    ) -> Any:
        """Attends by the kernel with gradients: `(B, T, N * H)`.

        Queries are `(B, T, N * H)`, keys and values `(B, K, N * H)`, distances `(K, N * H)`, and
        both biases `(N, H)`.
        """
        # Imported here, as it needs TensorFlow and JAX.
        from txl_tf.tpu_kernels.attention_call import attend

        return attend(
            AttentionPlan(**self._sizes(query, biases[0].shape[0]), dropout=dropout),
            self.first_keys(query.shape[1]),
            hash_keys,
            query,
            key,
            value,
            distances,
            side_by_side(biases),
        )

    def inference_plan(self, query: Any, num_heads: int) -> InferencePlan:
        """Makes the plan of the inference kernel, which reads memory and segment separately."""
        return InferencePlan(**self._sizes(query, num_heads))

    def _sizes(self, query: Any, num_heads: int) -> dict[str, Any]:
        num_rows, num_tokens, width = query.shape
        return {
            "num_rows": num_rows,
            "segment_length": num_tokens,
            "memory_length": self.memory_length,
            "num_heads": num_heads,
            "head_dim": width // num_heads,
            "dtype": keras.backend.standardize_dtype(query.dtype),
            "farthest": self.farthest,
            "has_query_starts": self._has_query_starts(num_tokens),
            "kernel": self.kernel,
        }

    def _has_query_starts(self, num_tokens: int) -> bool:
        is_one_segment = self.segment_length in (None, num_tokens)
        return self.document_starts is not None or not is_one_segment

    def first_keys(self, num_tokens: int) -> Any:
        """Returns the first visible keys, int32 `(B,)`, or `(B, T)` if queries differ."""
        first = self.memory_length - ops.cast(self.valid_length, "int32")
        if not self._has_query_starts(num_tokens):
            return first
        first = ops.expand_dims(first, 1)
        if self.document_starts is not None:
            starts = _latest_starts(self.document_starts)  # [B, T]
            first = ops.maximum(first, starts + self.memory_length)
        if self.segment_length is not None:
            queries = ops.arange(num_tokens, dtype="int32")
            # Each segment's memory begins later by the tokens of the call before that segment.
            of_segments = queries // self.segment_length * self.segment_length
            first = ops.maximum(first, ops.expand_dims(of_segments + self.num_unused, 0))
        return first


def side_by_side(biases: Sequence[Any]) -> Any:
    """Returns both biases `(N, H)` in the layout of the kernel, float32 `(2, N * H)`."""
    return ops.stack([ops.reshape(ops.cast(bias, "float32"), [-1]) for bias in biases])


def _latest_starts(document_starts: Any) -> Any:
    """Returns where each token's document begins, int32 `(B, T)`; -2**30 if in memory."""
    positions = ops.arange(document_starts.shape[1], dtype="int32")
    is_before = ops.expand_dims(positions, 0) <= ops.expand_dims(positions, 1)  # [T, T]
    is_start = ops.logical_and(ops.expand_dims(document_starts, 1), is_before)  # [B, T, T]
    return ops.max(ops.where(is_start, positions, -(2**30)), axis=2)
