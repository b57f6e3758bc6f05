"""Multi-head attention over segment and memory; absolute and Shaw position encodings.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, D hidden width, N heads, H head width, P learned distances.
"""

import functools
import operator
from typing import Any, NamedTuple

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.compiled_parts import compiled_part
from txl_tf.layers.feed_forward import SeededDropout, normal_unless


class MemoryAttention(keras.layers.Layer):
    """Multi-head attention over segment and memory; subclasses add positions.

    Queries come from the segment, keys and values from memory and segment, all by projections
    without bias. Scores are computed in the compute dtype, the softmax over them in float32. This
    class is the attention of a model with absolute positions, which are part of its inputs;
    subclasses add terms for distances to the scores.

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
            before the segment. The caller stops its gradient, so that terms added to it can be
            learned.
        attention_mask: boolean tensor that broadcasts to `(B, N, T, K)`; True
            where attention is allowed.
        dropout_seed: optional int32 tensor `(B, 2)` or `(2,)`, see `SeededDropout`.
        training: bool. If `True`, dropout is active.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If `num_heads` or `head_dim` is not positive.
    """

    def __init__(self, num_heads, head_dim, dropout=0.0, kernel_initializer=None, **kwargs):
        super().__init__(**kwargs)
        if num_heads <= 0 or head_dim <= 0:
            raise ValueError(
                "`num_heads` and `head_dim` must be positive. "
                f"Received: num_heads={num_heads}, head_dim={head_dim}"
            )
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.kernel_initializer = normal_unless(kernel_initializer)
        self.probability_dropout = SeededDropout(
            dropout, dtype=self.dtype_policy, name="probability_dropout"
        )

    def build(self, inputs_shape, **other_shapes):
        hidden_dim, width = inputs_shape[-1], self.num_heads * self.head_dim
        self.query = self._projection(hidden_dim, width, "query")
        self.key = self._projection(hidden_dim, width, "key")
        self.value = self._projection(hidden_dim, width, "value")
        self.output_projection = self._projection(width, hidden_dim, "output")

    def _projection(self, input_dim, units, name):
        projection = keras.layers.Dense(
            units,
            use_bias=False,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )
        projection.build((None, None, input_dim))
        return projection

    def _weight(self, name, shape):
        return self.add_weight(shape=shape, initializer=self.kernel_initializer.clone(), name=name)

    def scaled_query_kernel(self):
        """Returns the query kernel divided by `sqrt(H)`, `(D, N * H)`.

        Scaling the weights costs less than scaling every query.
        """
        return ops.cast(self.query.kernel, self.compute_dtype) * self.head_dim**-0.5

    def split_heads(self, tensor):
        """Reshapes `(B, T, N * H)` to `(B, T, N, H)`."""
        return ops.reshape(tensor, [-1, ops.shape(tensor)[1], self.num_heads, self.head_dim])

    def call(
        self,
        inputs,
        memory=None,
        attention_mask=None,
        dropout_seed=None,
        training=False,
        **position,
    ):
        addends = self._score_addends(inputs, memory, position)
        drop = self._dropped_probabilities
        if self.compute_dtype != "float32":
            # In float32 nothing is cast, and TensorFlow's softmax is faster.
            drop = compiled_part(drop)
        probabilities = drop(addends, attention_mask, dropout_seed, training)  # [B, N, T, K]
        value = self._heads_first(self._project_keys(self.value, inputs, memory))  # [B, N, K, H]
        attended = ops.transpose(ops.matmul(probabilities, value), [0, 2, 1, 3])
        width = self.num_heads * self.head_dim
        attended = ops.reshape(attended, [-1, ops.shape(inputs)[1], width])  # [B, T, N * H]
        return self.output_projection(attended)  # [B, T, D]

    def attention_probabilities(self, inputs, memory=None, attention_mask=None, **position):
        """Computes the attention probability of every key for every query.

        Args:
            inputs: as in a call.
            memory: as in a call.
            attention_mask: as in a call.
            **position: further call arguments of a subclass.

        Returns:
            Float32 tensor `(B, N, T, K)`, float64 if the layer computes in it.
        """
        return self._probabilities(self._score_addends(inputs, memory, position), attention_mask)

    def _project_keys(self, projection, inputs, memory):
        """Projects memory and segment, `(B, K, N * H)`."""
        projected = projection(inputs)
        if memory is None or memory.shape[1] == 0:
            return projected
        # Two products, because a joint one would compute a gradient of the memory, which needs
        # none.
        of_memory = projection(ops.cast(memory, inputs.dtype))
        return ops.concatenate([of_memory, projected], axis=1)

    def _heads_first(self, tensor):
        """Turns `(B, T, N * H)` into `(B, N, T, H)`, the layout for TensorFlow's products."""
        return ops.transpose(self.split_heads(tensor), [0, 2, 1, 3])

    def _score_addends(self, inputs, memory, position):
        query = self.query(inputs)  # [B, T, N * H]
        key = self._heads_first(self._project_keys(self.key, inputs, memory))  # [B, N, K, H]
        return self._scores(self.split_heads(query), ops.transpose(key, [0, 1, 3, 2]), **position)

    def _scores(self, query, key):
        """Returns addends of scores `(B, N, T, K)`, from `(B, T, N, H)` and `(B, N, H, K)`."""
        return (self._products(query * self.head_dim**-0.5, key),)

    def _products(self, query, key):
        """Multiplies queries `(B, T, N, H)` with keys `(..., N, H, K)`: `(B, N, T, K)`."""
        if self.num_heads > 1:
            return ops.matmul(ops.transpose(query, [0, 2, 1, 3]), key)
        # Without an axis of heads: on a CPU, TensorFlow 2.20 fuses this product with a sum and
        # crashes with one head.
        return ops.matmul(query[:, :, 0], key[:, 0])[:, None]

    def _dropped_probabilities(self, addends, attention_mask, dropout_seed, training):
        probabilities = self._probabilities(addends, attention_mask)
        # Cast back before the product with the values, which runs in the compute dtype.
        return self.probability_dropout(
            ops.cast(probabilities, self.compute_dtype), seed=dropout_seed, training=training
        )

    def _probabilities(self, addends, attention_mask):
        # In half precision, sums over thousands of keys lose small probabilities.
        scores = functional.at_least_float32(functools.reduce(operator.add, addends))
        if attention_mask is not None:
            scores = functional.mask_scores(scores, attention_mask)
        return functional.softmax_over_keys(scores)

    def compute_output_shape(self, inputs_shape, *args, **kwargs):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }


@keras.saving.register_keras_serializable(package="txl_tf")
class AbsoluteAttention(MemoryAttention):
    """Multi-head attention of Vaswani et al. (2017), Section 3.2, with a memory.

    It adds no positions: they must be part of `inputs` and `memory`. Arguments and
    results are the same as in `MemoryAttention`.
    """


class DistanceKeys(NamedTuple):
    """Keys of all distances of one layer, computed from the weights alone.

    Column 0 belongs to no distance: it is the column that `functional.relative_shift` drops when
    it reads scores by distance as scores by key. Column `1 + j` belongs to the distance
    `K - 1 - j`.

    Attributes:
        keys: float tensor `(N, H, K + 1)`.
        scores: optional float tensor `(N, 1, K + 1)`, the same for all queries.
    """

    keys: Any
    scores: Any = None


@keras.saving.register_keras_serializable(package="txl_tf")
class TwoTermShawAttention(MemoryAttention):
    """Multi-head attention with the relative positions of Shaw et al. (2018), in two terms.

    In the form of Dai et al. (2019), Section 3.3, with only two of their four terms: (a), content
    and content, and (b), content and position. The product of projection and encoding is one
    learned matrix. Scores are

        (q . k + relative_shift(q . a)) / sqrt(H)

    with a learned vector `a` for every distance and head. Distances from `P - 1` on share the
    last vector. Call arguments and results are the same as in `MemoryAttention`.

    Args:
        num_heads: int. Number of heads `N`.
        head_dim: int. Width `H` of one head.
        num_positions: int. Number of learned distances `P`.
        **kwargs: other keyword arguments passed to `MemoryAttention`.

    Raises:
        ValueError: If a size is not positive.

    References:
     - [Shaw et al., 2018](https://arxiv.org/abs/1803.02155)
    """

    def __init__(self, num_heads, head_dim, num_positions, **kwargs):
        super().__init__(num_heads, head_dim, **kwargs)
        if num_positions <= 0:
            raise ValueError(
                f"`num_positions` must be positive. Received: num_positions={num_positions}"
            )
        self.num_positions = num_positions

    def build(self, inputs_shape, **other_shapes):
        super().build(inputs_shape)
        self._build_terms()

    def _build_terms(self):
        self.distance_keys = self._weight(
            "distance_keys", (self.num_positions, self.num_heads, self.head_dim)
        )

    def _scores(self, query, key):
        distances = functional.distances_to_end(ops.shape(key)[3], self.num_positions)
        content_scores = self._products(self._content_query(query), key)
        scores = content_scores + functional.relative_shift(self._distance_scores(query, distances))
        return (scores * self.head_dim**-0.5,)

    def _content_query(self, query):
        return query

    def _distance_scores(self, query, distances):
        distance_keys = ops.cast(
            ops.take(self.distance_keys, distances, axis=0), self.compute_dtype
        )  # [K, N, H]
        return ops.einsum("btnh,knh->bntk", query, distance_keys)

    def queries(self, scaled_query):
        """Computes the queries for contents and for distances, `(B, T, N, H)` each.

        `scaled_query`, `(B, T, N * H)`, is inputs times `scaled_query_kernel`.
        """
        query = self.split_heads(scaled_query)
        return query, query

    def project_distances(self, key_length, encoding=None):
        """Returns the learned `DistanceKeys` of `K` distances; `encoding` is not used."""
        distances = functional.distances_to_end(key_length, self.num_positions)
        keys = ops.transpose(ops.take(self.distance_keys, distances, axis=0), [1, 2, 0])
        padding = [[0, 0], [0, 0], [1, 0]]
        return DistanceKeys(ops.pad(ops.cast(keys, self.compute_dtype), padding))  # [N, H, K + 1]

    def get_config(self):
        return {**super().get_config(), "num_positions": self.num_positions}


@keras.saving.register_keras_serializable(package="txl_tf")
class ShawAttention(TwoTermShawAttention):
    """Multi-head attention with the relative positions of Shaw et al. (2018) and biases.

    In the form of the official PyTorch code of Dai et al. (2019), with its terms (c) and (d), the
    latter as a learned number. Scores are

        ((q + u) . k + relative_shift(q . a + b)) / sqrt(H)

    with a learned vector `a` and a learned number `b` for every distance and head. All else is as
    in `TwoTermShawAttention`.

    Args:
        num_heads: int. Number of heads `N`.
        head_dim: int. Width `H` of one head.
        num_positions: int. Number of learned distances `P`.
        **kwargs: other keyword arguments passed to `MemoryAttention`.

    Raises:
        ValueError: If a size is not positive.
    """

    def _build_terms(self):
        self.content_bias = self._weight("content_bias", (self.num_heads, self.head_dim))
        super()._build_terms()
        self.distance_bias = self._weight("distance_bias", (self.num_positions, self.num_heads))

    def _content_query(self, query):
        # A biased query needs one product; `q . k` and `u . k` apart would be two.
        return query + ops.cast(self.content_bias, self.compute_dtype)

    def _distance_scores(self, query, distances):
        distance_bias = ops.cast(
            ops.take(self.distance_bias, distances, axis=0), self.compute_dtype
        )  # [K, N]
        # Added over distances, so that one shift moves both to the keys.
        scores = super()._distance_scores(query, distances)
        return scores + ops.transpose(distance_bias)[None, :, None]

    def queries(self, scaled_query):
        """Computes the queries for contents and for distances; see `TwoTermShawAttention`."""
        query, _ = super().queries(scaled_query)
        content_bias = ops.cast(self.content_bias, self.compute_dtype)
        return query + content_bias * self.head_dim**-0.5, query

    def project_distances(self, key_length, encoding=None):
        """Returns the `DistanceKeys` of `K` distances, with scores from the learned numbers."""
        distances = functional.distances_to_end(key_length, self.num_positions)
        scores = ops.transpose(ops.take(self.distance_bias, distances, axis=0))[:, None]
        scores = ops.cast(scores * self.head_dim**-0.5, self.compute_dtype)
        keys = super().project_distances(key_length).keys
        return DistanceKeys(keys, ops.pad(scores, [[0, 0], [0, 0], [1, 0]]))
