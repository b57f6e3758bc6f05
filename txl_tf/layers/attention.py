"""Multi-head attention over segment and memory, with the positions of Transformer-XL and others.

Shapes end the names of most tensors: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width, J = K + 1 columns of distances. Further letters in this module: D
hidden width, P learned distances.
"""

import functools
import operator
from typing import Any, NamedTuple

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.compiled_parts import compiled_part
from txl_tf.layers.configured_layer import ConfiguredLayer, normal_unless, projection_of
from txl_tf.layers.seeded_dropout import SeededDropout


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


class Projections(NamedTuple):
    """Tensors that attention of one layer computes from."""

    query: Any
    """`(B, T, N * H)`."""
    key: Any
    """`(B, T, N * H)`, or `(B, K, N * H)` with the hidden states of memory."""
    value: Any
    content_bias: Any = None
    """`(N, H)`, added to the queries for contents."""
    position_bias: Any = None
    """`(N, H)`, added to the queries for distances."""
    distances: DistanceKeys | None = None
    kept: Any = None
    """`KeysAndValues` of memory, and of recent tokens for `OneToken`; `None` if memory holds hidden
    states."""


@keras.saving.register_keras_serializable(package="txl_tf")
class MemoryAttention(ConfiguredLayer):
    """Multi-head attention over segment and memory, of Vaswani et al. (2017), Section 3.2.

    Queries come from the segment, keys and values from memory and segment, all by projections
    without bias. Scores are computed in the compute dtype, the softmax in at least float32.
    Without `distances`, positions must be part of `inputs` and `memory`. Subclasses compute
    `distances`, whose terms are added to the scores.

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
        attention_mask: optional boolean tensor that broadcasts to `(B, N, T, K)`; True
            where attention is allowed.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. If `True`, dropout is active.
        return_probabilities: bool. If `True`, the probability of every key for every query is
            returned instead: `(B, N, T, K)`, float32, or float64 if the layer computes in it.
        kept: optional `KeysAndValues` in the place of `memory`, not with absolute positions.
        distances: optional result of `keys_of_distances`, if it was computed before.
        attend: optional function of `layers.attention_operators` in the place of `attention_mask`.

    Returns:
        Float tensor `(B, T, D)`; with `kept` a tuple with the next `KeysAndValues`.
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

    @property
    def score_scale(self):
        """Factor of all terms of the scores, for every operator and kernel."""
        return self.head_dim**-0.5

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
        kept=None,
        distances=None,
        attend=None,
    ):
        return self._attended(
            self._projections(inputs, memory, kept, distances),
            attention_mask,
            attend,
            dropout_seed,
            training,
            return_probabilities,
        )

    def _projections(self, inputs, memory, kept, distances):
        return Projections(
            self.query(inputs),
            self.project(self.key, inputs, memory),
            self.project(self.value, inputs, memory),
            distances=distances,
            kept=kept,
        )

    def _attended(
        self, projections, attention_mask, attend, dropout_seed, training, return_probabilities
    ):
        """Attends, and projects the result."""
        mask_BNTJ = None
        if attention_mask is not None:
            memory_length = 0 if projections.kept is None else projections.kept.keys.shape[-1]
            num_tokens = ops.shape(projections.query)[1]
            num_keys = memory_length + ops.shape(projections.key)[1]
            every_pair = ops.ones((1, 1, num_tokens, num_keys), "bool")
            pair_mask = ops.logical_and(attention_mask, every_pair)
            mask_BNTJ = functional.mask_over_distances(pair_mask, self.compute_dtype)
        if return_probabilities:
            keys, _ = self.keys_and_values(projections)
            return self._softmax(*self._scores(projections, keys, mask_BNTJ))
        if attend is None:
            attended = self.attend_all_heads(projections, mask_BNTJ, dropout_seed, training)
        else:
            attended = attend(self, projections, dropout_seed, training)
        attended, next_kept = attended
        outputs = self.output_projection(attended)
        return outputs if projections.kept is None else (outputs, next_kept)

    def attend_all_heads(self, projections, mask_BNTJ, dropout_seed=None, training=False):
        """Computes all rows and heads in one product, `(B, T, N * H)`.

        `mask_BNTJ` are scores over distances that broadcast to `(B, N, T, J)`: 0 where attention
        is allowed, very negative elsewhere. Also returns the `KeysAndValues` of memory and segment.
        """
        together = self.keys_and_values(projections)
        scores_BNTK = self._scores(projections, together.keys, mask_BNTJ)
        weights_BNTK = self._weights(scores_BNTK, dropout_seed, training)
        attended_BNTH = ops.matmul(weights_BNTK, together.values)
        attended_BTNH = ops.transpose(attended_BNTH, [0, 2, 1, 3])
        width = self.num_heads * self.head_dim
        attended = ops.reshape(attended_BTNH, [-1, ops.shape(attended_BTNH)[1], width])
        return attended, together

    def queries(self, projections):
        """Returns the scaled queries for contents and for distances, `(B, T, N, H)` each."""
        query_BTNH = self.split_heads(projections.query)

        def scale_query(bias_NH):
            # On queries: there are K / H times as many scores.
            return (query_BTNH if bias_NH is None else query_BTNH + bias_NH) * self.score_scale

        return scale_query(projections.content_bias), scale_query(projections.position_bias)

    def keys_and_values(self, projections):
        """Returns the `KeysAndValues` of memory and segment, of length K."""
        key_BTNH, value_BTNH = map(self.split_heads, (projections.key, projections.value))
        # As two transpositions: the product takes over the second.
        key_BNHT = ops.transpose(ops.transpose(key_BTNH, [0, 2, 1, 3]), [0, 1, 3, 2])
        value_BNTH = ops.transpose(value_BTNH, [0, 2, 1, 3])
        if projections.kept is None:
            return KeysAndValues(key_BNHT, value_BNTH)
        keys, values = projections.kept
        return KeysAndValues(
            ops.concatenate([keys, key_BNHT], axis=3), ops.concatenate([values, value_BNTH], axis=2)
        )

    def _scores(self, projections, key_BNHK, mask_BNTJ):
        """Returns the terms of the scores over keys; masks are scores over distances."""
        content_query_BTNH, distance_query_BTNH = self.queries(projections)
        content_BNTK = self._product(content_query_BTNH, key_BNHK)
        distances, mask_terms = projections.distances, ()
        if distances is not None:
            distance_BNTJ = self._product(distance_query_BTNH, distances.keys[None])
        if mask_BNTJ is not None and distances is not None and self.compute_dtype == "float32":
            distance_BNTJ = distance_BNTJ + mask_BNTJ  # oneDNN adds it within the product
        elif mask_BNTJ is not None:
            mask_terms = (functional.shift_padded(mask_BNTJ),)
        if distances is None:
            return content_BNTK, *mask_terms
        if distances.scores is not None:
            distance_BNTJ = distance_BNTJ + distances.scores
        return content_BNTK, functional.shift_padded(distance_BNTJ), *mask_terms

    def _product(self, query_BTNH, key_BNHK):
        """Multiplies queries with keys; keys with `B = 1` serve all rows."""
        if self.num_heads > 1:
            return ops.matmul(ops.transpose(query_BTNH, [0, 2, 1, 3]), key_BNHK)
        # Without an axis of heads, because TensorFlow 2.20 crashed on CPUs with it.
        return ops.matmul(query_BTNH[:, :, 0], key_BNHK[:, 0])[:, None]

    def _weights(self, scores_BNTK, dropout_seed, training):
        """Returns probabilities with dropout, in the dtype of the product with the values."""
        arguments = *scores_BNTK, dropout_seed, training
        if self.compute_dtype == "float32":
            # Nothing is cast, and TensorFlow's softmax is faster.
            return self._dropped_softmax(*arguments)
        return compiled_part(self._dropped_softmax)(*arguments)

    def _dropped_softmax(self, *arguments):
        *scores_BNTK, dropout_seed, training = arguments
        probabilities_BNTK = ops.cast(self._softmax(*scores_BNTK), self.compute_dtype)
        return self.probability_dropout(probabilities_BNTK, seed=dropout_seed, training=training)

    def _softmax(self, *scores_BNTK):
        """Adds up the terms of the scores, and takes the softmax."""
        # In half precision, sums over thousands of keys lose small probabilities.
        score_BNTK = functional.at_least_float32(functools.reduce(operator.add, scores_BNTK))
        return functional.softmax_over_keys(score_BNTK)

    def project(self, projection, inputs, memory):
        """Projects the hidden states of memory, if there are any, and the segment."""
        segment_projection = projection(inputs)
        if memory is None or memory.shape[1] == 0:
            return segment_projection
        # Two products, because a joint one would compute a gradient of the memory, which needs
        # none.
        of_memory = projection(ops.cast(memory, inputs.dtype))
        return ops.concatenate([of_memory, segment_projection], axis=1)

    def split_heads(self, tensor):
        """Reshapes `(B, T, N * H)` to `(B, T, N, H)`."""
        return ops.reshape(tensor, [-1, ops.shape(tensor)[1], self.num_heads, self.head_dim])


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
            `K - 1 - j`. Not needed with `distances`.
        content_bias: float tensor `(N, H)`, without `own_biases`.
        position_bias: float tensor `(N, H)`, without `own_biases`.
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
        content_bias_NH, position_bias_NH = self.biases(content_bias, position_bias)
        if distances is None:
            # All rows share the distances: K projections, where keys need B * K.
            distances = self.keys_of_distances(ops.shape(position_encoding)[0], position_encoding)
        projections = self._projections(inputs, memory, kept, distances)._replace(
            content_bias=content_bias_NH, position_bias=position_bias_NH
        )
        return self._attended(
            projections, attention_mask, attend, dropout_seed, training, return_probabilities
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
        return DistanceKeys(_before_first(ops.transpose(keys_KNH, [1, 2, 0])))


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
            memory_length = 0 if kept is None else kept.keys.shape[-1]
            distances = self.keys_of_distances(memory_length + ops.shape(projections.key)[1])
            projections = projections._replace(distances=distances)
        if not self.has_biases:
            return projections
        return projections._replace(content_bias=ops.cast(self.content_bias, self.compute_dtype))

    def keys_of_distances(self, key_length, position_encoding=None):
        """Computes the `DistanceKeys` of `K` distances from the learned tables."""
        keys_KNH = self._of_distances(self.distance_keys, key_length)
        scores_N1K = None
        if self.has_biases:
            bias_KN = self._of_distances(self.distance_bias, key_length)
            scores_N1K = _before_first(ops.transpose(bias_KN)[:, None] * self.score_scale)
        return DistanceKeys(_before_first(ops.transpose(keys_KNH, [1, 2, 0])), scores_N1K)

    def _of_distances(self, table, key_length):
        """Returns the rows of a learned table for the distances `K - 1` to 0."""
        rows = functional.distances_to_end(key_length, self.num_positions)
        return ops.cast(ops.take(table, rows, axis=0), self.compute_dtype)


def _before_first(tensor):
    """Adds the column that belongs to no distance: `(N, X, K)` to `(N, X, J)`."""
    return ops.pad(tensor, [[0, 0], [0, 0], [1, 0]])
