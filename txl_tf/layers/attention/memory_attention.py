"""Multi-head attention over segment and memory.

Shapes end the names of most tensors: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width, J = K + 1 columns of distances. A further letter in this module: D
hidden width.
"""

import functools
import operator

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers.attention.projections import KeysAndValues, Projections
from txl_tf.layers.compiled_parts import compiled_part
from txl_tf.layers.configured_layer import ConfiguredLayer, normal_unless, projection_of
from txl_tf.layers.seeded_dropout import SeededDropout

# Arguments of which a call of a layer of attention or of its block takes only one.
_ALTERNATIVES = (
    {"memory", "kept"},
    {"memory", "stateful"},
    {"kept", "stateful"},
    {"attend", "attention_mask"},
    {"attend", "return_probabilities"},
    {"distances", "position_encoding"},
    {"content_bias", "own_biases"},
)


@keras.saving.register_keras_serializable(package="txl_tf")
class MemoryAttention(ConfiguredLayer):
    """Multi-head attention over segment and memory, of Vaswani et al. (2017), Section 3.2.

    Queries come from the segment, keys and values from memory and segment, all by projections
    without bias. Scores are computed in the compute dtype, the softmax in at least float32.
    Without `distances`, positions must be part of `inputs` and `memory`. Subclasses compute
    `distances`, whose terms are added to the scores.

    Memory is either the hidden states in `memory` or the keys and values in `kept`. What a query
    may see is either an `attention_mask` or part of the function `attend`.

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
        kept: optional `KeysAndValues` in the place of `memory`, only with `attend` and
            `distances`.
        distances: optional result of `keys_of_distances`, if it was computed before.
        attend: optional result of `AttentionOperator.bind`, in the place of `attention_mask` and
            not with `return_probabilities`.

    Returns:
        Float tensor `(B, T, D)`; with `kept` a tuple with the next `KeysAndValues`.

    Raises:
        ValueError: If arguments are combined in another way.
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
        check_call(
            memory=memory,
            attention_mask=attention_mask,
            return_probabilities=return_probabilities,
            kept=kept,
            distances=distances,
            attend=attend,
        )
        projections = self._projections(inputs, memory, kept, distances)
        return self._attended(
            projections, attention_mask, dropout_seed, training, return_probabilities, attend
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
        self, projections, attention_mask, dropout_seed, training, return_probabilities, attend
    ):
        """Attends, and projects the result."""
        if attend is not None:
            attended, next_kept = attend(self, projections, dropout_seed, training)
            outputs = self.output_projection(attended)
            return outputs if projections.kept is None else (outputs, next_kept)
        mask_BNTJ = None
        if attention_mask is not None:
            num_tokens, num_keys = (
                ops.shape(each)[1] for each in (projections.query, projections.key)
            )
            every_pair = ops.ones((1, 1, num_tokens, num_keys), "bool")
            pair_mask = ops.logical_and(attention_mask, every_pair)
            mask_BNTJ = functional.mask_over_distances(pair_mask, self.compute_dtype)
        if return_probabilities:
            keys, _ = self.keys_and_values(projections)
            return self._softmax(*self._scores(projections, keys, mask_BNTJ))
        attended, _ = self.attend_all_heads(projections, mask_BNTJ, dropout_seed, training)
        return self.output_projection(attended)

    def attend_all_heads(self, projections, mask_BNTJ, dropout_seed=None, training=False):
        """Computes all rows and heads in one product.

        `mask_BNTJ` has scores over distances and broadcasts to `(B, N, T, J)`: 0 where attention
        is allowed, very negative elsewhere.

        Returns:
            Tuple of the attended values `(B, T, N * H)` and the `KeysAndValues` of memory and
            segment.
        """
        together = self.keys_and_values(projections)
        scores_BNTK = self._scores(projections, together.keys, mask_BNTJ)
        weights_BNTK = self._weights(scores_BNTK, dropout_seed, training)
        attended_BNTH = ops.matmul(weights_BNTK, together.values)
        attended_BTNH = ops.transpose(attended_BNTH, [0, 2, 1, 3])
        shape = [-1, ops.shape(attended_BTNH)[1], self.num_heads * self.head_dim]
        return ops.reshape(attended_BTNH, shape), together

    def queries(self, projections):
        """Returns the scaled queries for contents and for distances, `(B, T, N, H)` each."""
        query_BTNH = self.split_heads(projections.query)

        def scale_query(bias_NH):
            # Queries are scaled instead of scores, because there are K / H times as many scores.
            return (query_BTNH if bias_NH is None else query_BTNH + bias_NH) * self.score_scale

        return scale_query(projections.content_bias), scale_query(projections.position_bias)

    def keys_and_values(self, projections):
        """Returns the `KeysAndValues` of memory and segment, of length K."""
        key_BTNH, value_BTNH = map(self.split_heads, (projections.key, projections.value))
        # As two transpositions, because the product of the scores can take over the second.
        key_BNHT = ops.transpose(ops.transpose(key_BTNH, [0, 2, 1, 3]), [0, 1, 3, 2])
        value_BNTH = ops.transpose(value_BTNH, [0, 2, 1, 3])
        if projections.kept is None:
            return KeysAndValues(key_BNHT, value_BNTH)
        keys, values = projections.kept
        return KeysAndValues(
            ops.concatenate([keys, key_BNHT], axis=3), ops.concatenate([values, value_BNTH], axis=2)
        )

    def _scores(self, projections, key_BNHK, mask_BNTJ):
        """Returns the terms of the scores over keys: of contents, of distances and of the mask.

        Each is `(B, N, T, K)` or broadcasts to it. In float32 the term of distances may include the
        mask.
        """
        content_query_BTNH, distance_query_BTNH = self.queries(projections)
        terms_BNTK = [self._product(content_query_BTNH, key_BNHK)]
        distances = projections.distances
        if distances is not None:
            distance_BNTJ = self._product(distance_query_BTNH, distances.keys[None])
            if mask_BNTJ is not None and self.compute_dtype == "float32":
                distance_BNTJ = distance_BNTJ + mask_BNTJ  # oneDNN adds it within the product
                mask_BNTJ = None
            if distances.scores is not None:
                distance_BNTJ = distance_BNTJ + distances.scores
            terms_BNTK.append(functional.shift_padded(distance_BNTJ))
        if mask_BNTJ is not None:
            terms_BNTK.append(functional.shift_padded(mask_BNTJ))
        return terms_BNTK

    def _product(self, query_BTNH, key_BNHK):
        """Multiplies queries with keys; keys with `B = 1` serve all rows."""
        if self.num_heads > 1:
            return ops.matmul(ops.transpose(query_BTNH, [0, 2, 1, 3]), key_BNHK)
        # Without an axis of heads, because TensorFlow 2.20 crashed on CPUs with it.
        return ops.matmul(query_BTNH[:, :, 0], key_BNHK[:, 0])[:, None]

    def _weights(self, scores_BNTK, dropout_seed, training):
        """Returns probabilities with dropout, in the dtype of the product with the values."""
        # In float32 nothing is cast, and TensorFlow's own softmax is faster.
        is_float32 = self.compute_dtype == "float32"
        softmax = self._dropped_softmax if is_float32 else compiled_part(self._dropped_softmax)
        return softmax(*scores_BNTK, dropout_seed, training)

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
        memory_projection = projection(ops.cast(memory, inputs.dtype))
        return ops.concatenate([memory_projection, segment_projection], axis=1)

    def split_heads(self, tensor):
        """Reshapes `(B, T, N * H)` to `(B, T, N, H)`."""
        return ops.reshape(tensor, [-1, ops.shape(tensor)[1], self.num_heads, self.head_dim])


def check_call(**arguments):
    """Raises ValueError for arguments of a call that exclude each other, or `kept` without others.

    Arguments that are `None` or `False` are not passed.
    """
    names = {name for name, each in arguments.items() if each is not None and each is not False}
    is_complete = "kept" not in names or {"attend", "distances"} <= names
    if not is_complete or any(pair <= names for pair in _ALTERNATIVES):
        pairs = ", ".join(" or ".join(sorted(pair)) for pair in _ALTERNATIVES)
        raise ValueError(
            f"A call takes only one of each pair: {pairs}; and `kept` only with `attend` and "
            f"`distances`. Received: {', '.join(sorted(names))}"
        )
