"""Adaptive embedding and softmax over clusters of the vocabulary; one table without cutoffs.

Shape letters used in this module: B rows, T segment length, N = B * T tokens, V vocabulary, D
hidden width, E embedding width, R token ids of one cluster, W width of one cluster.
"""

import math

import keras
from keras import ops

from txl_tf import functional
from txl_tf.config.model import VocabularyClusters
from txl_tf.layers.cluster_loops import (
    cluster_embeddings,
    cluster_ids,
    cluster_negative_log_likelihood,
    group_by_cluster,
    project_back,
    table_logits,
)
from txl_tf.layers.configured_layer import ConfiguredLayer, normal_unless
from txl_tf.layers.token_ids import check_token_ids

# The most logits of a tail that exist at a time, 256 MiB in float32.
_MAX_CHUNK_LOGITS = 2**26
# Number of tokens assumed for capacities if the shape is unknown.
_UNKNOWN_NUM_TOKENS = 1024


class VocabularyLayer(ConfiguredLayer):
    """Base class of layers that have weights for every token id, cluster by cluster."""

    _arguments: tuple[str, ...] = ("embeddings_initializer", "projection_initializer")

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        embedding_dim=None,
        cutoffs=(),
        division_factor=1,
        project_same_dim=True,
        embeddings_initializer=None,
        projection_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.clusters = VocabularyClusters(
            vocabulary_size=vocabulary_size,
            hidden_dim=hidden_dim,
            embedding_dim=hidden_dim if embedding_dim is None else embedding_dim,
            cutoffs=tuple(cutoffs),
            division_factor=division_factor,
            project_same_dim=project_same_dim,
        )
        self.embeddings_initializer = normal_unless(embeddings_initializer)
        self.projection_initializer = normal_unless(projection_initializer, 0.01)

    def get_config(self):
        return {**super().get_config(), **self.clusters.to_dict()}

    def _weights(self, name, shapes, initializer, **options):
        """Creates a weight of each shape, and `None` for `None`."""
        names = [name] if len(shapes) == 1 else [f"{name}_{index}" for index in range(len(shapes))]
        return [
            None
            if shape is None
            else self.add_weight(shape=shape, initializer=initializer.clone(), name=each, **options)
            for each, shape in zip(names, shapes, strict=True)
        ]

    def _tails(self, flat_ids, clusters, capacities):
        """Yields each tail's index, ids `(N,)` counted from its first one, group and capacity."""
        groups = group_by_cluster(clusters, len(capacities) + 1, max(capacities))
        for index, (group, capacity) in enumerate(zip(groups, capacities, strict=True), start=1):
            first, end = self.clusters.spans[index]
            yield index, ops.clip(flat_ids - first, 0, end - first - 1), group, capacity


@keras.saving.register_keras_serializable(package="txl_tf")
class AdaptiveEmbedding(VocabularyLayer):
    """Token embedding by clusters, projected to `D` and scaled by `sqrt(D)`.

    Ids are sorted by falling frequency and cut into clusters. Each cluster has a table of its own
    width, as in Baevski and Auli (2019). All clusters but the first are looked up and projected
    only for their own tokens. With `division_factor=1` there is one table `(V, E)` with one
    projection `(E, D)`, or none if `E` is `D`.

    Args:
        vocabulary_size: int. Number of token ids, `V`.
        hidden_dim: int. Width `D`.
        embedding_dim: optional int. Width `E` of the first cluster; `D` by default.
        cutoffs: ascending ints. The first id of every cluster but the first.
        division_factor: int. Cluster `i` is `E // division_factor**i` wide.
        project_same_dim: bool. If `True`, a cluster of width `D` is projected too; no effect if
            `division_factor` is 1.
        embeddings_initializer: initializer of the tables, by default normal of stddev 0.02.
        projection_initializer: initializer of the projections, by default normal of stddev 0.01.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Attributes:
        tables: list of the variables `(R, W)` of all clusters, or of one `(V, E)`.
        projections: list of variables `(W, D)` or `None` in the same order.

    Call arguments:
        token_ids: int tensor `(B, T)` with values in `[0, V)`.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If sizes or `cutoffs` do not fit, or ids are known and not in `[0, V)`, see
            `check_token_ids`.

    References:
     - [Baevski and Auli, 2019](https://arxiv.org/abs/1809.10853)
    """

    def build(self, token_ids_shape):
        # Only the rows that are looked up are cast, not the whole table.
        self.tables = self._weights(
            "table", self.clusters.table_shapes, self.embeddings_initializer, autocast=False
        )
        self.projections = self._weights(
            "projection", self.clusters.projection_shapes, self.projection_initializer
        )

    def __call__(self, token_ids, *args, **kwargs):
        check_token_ids(token_ids, self.clusters.vocabulary_size)
        return super().__call__(token_ids, *args, **kwargs)

    def compute_output_shape(self, token_ids_shape):
        return (*token_ids_shape, self.clusters.hidden_dim)

    def call(self, token_ids):
        token_ids = ops.cast(token_ids, "int32")
        flat_ids = ops.reshape(token_ids, [-1])  # [N]
        embedded = self._lookup_head(flat_ids)  # [N, D]
        if len(self.tables) > 1:
            capacities = self.clusters.tail_capacities(static_num_tokens(token_ids))
            tails = self._tails(flat_ids, cluster_ids(flat_ids, self.clusters.cutoffs), capacities)
            for index, ids, group, capacity in tails:
                weights = self.tables[index], self.projections[index]
                embedded = embedded + cluster_embeddings(
                    ids, group, capacity, self.compute_dtype, *weights
                )
        embedded = ops.reshape(embedded, (*ops.shape(token_ids), self.clusters.hidden_dim))
        return embedded * self.clusters.hidden_dim**0.5

    def _lookup_head(self, flat_ids):
        is_head = flat_ids < self.clusters.table_shapes[0][0]
        rows = ops.take(self.tables[0], ops.where(is_head, flat_ids, 0), axis=0)
        rows = ops.cast(rows, self.compute_dtype)
        if self.projections[0] is not None:
            rows = ops.matmul(rows, self.projections[0])
        return ops.where(ops.expand_dims(is_head, 1), rows, ops.zeros_like(rows))


@keras.saving.register_keras_serializable(package="txl_tf")
class AdaptiveSoftmax(VocabularyLayer):
    """Adaptive softmax of Grave et al. (2017).

    Ids are sorted by falling frequency and cut into clusters. The head is a softmax over the ids
    of the first cluster and one entry per tail cluster; an id of a tail has the probability of
    its cluster times its probability within the cluster. The loss computes a tail only for its own
    targets. Without `cutoffs` this is the softmax over the whole vocabulary.

    Tables and projections have the same shapes as in an `AdaptiveEmbedding` with the same
    arguments, and can be its variables. All biases, and the weights of the tails' entries in the
    head, start at 0.

    Args:
        share_tail_projections: bool. If `True`, the tails use the projections of the embedding,
            which are then a call argument. With `cutoffs` the head has its own; without them the
            projection is always the embedding's.
        tie_weights: bool. If `True`, the tables are the embedding's and a call argument.
            Otherwise the layer has its own.
        **kwargs: the other arguments of `AdaptiveEmbedding`.

    Call arguments:
        hidden: float tensor `(B, T, D)`.
        tables: list of float tensors: `AdaptiveEmbedding.tables`. With
            `tie_weights`, and only then.
        projections: list of float tensors or `None`:
            `AdaptiveEmbedding.projections`. Only where they are shared.

    Returns:
        Log-probabilities of all tokens: float32 tensor `(B, T, V)`, float64 if the layer computes
        in it. `negative_log_likelihood` scores targets, and computes only their tails.

    Raises:
        ValueError: If sizes or `cutoffs` do not fit.

    References:
     - [Grave et al., 2017](https://arxiv.org/abs/1609.04309)
    """

    _arguments = (*VocabularyLayer._arguments, "share_tail_projections", "tie_weights")

    def __init__(
        self, vocabulary_size, hidden_dim, share_tail_projections=False, tie_weights=True, **kwargs
    ):
        super().__init__(vocabulary_size, hidden_dim, **kwargs)
        self.share_tail_projections = share_tail_projections
        self.tie_weights = tie_weights

    def build(self, hidden_shape, **other_shapes):
        clusters = self.clusters
        if not self.tie_weights:
            self.tables = self._weights("table", clusters.table_shapes, self.embeddings_initializer)
        self.biases = self._weights(
            "bias",
            [(size,) for size in clusters.sizes],
            keras.initializers.Zeros(),
            autocast=False,
        )
        shapes = [
            None if self._shares_projection(index) else shape
            for index, shape in enumerate(clusters.output_projection_shapes)
        ]
        self.projections = self._weights("projection", shapes, self.projection_initializer)
        if self.clusters.cutoffs:
            count = len(self.clusters.cutoffs)
            self.cluster_weight = self.add_weight(
                shape=(count, self.clusters.embedding_dim),
                initializer="zeros",
                name="cluster_weight",
            )
            self.cluster_bias = self.add_weight(
                shape=(count,), initializer="zeros", autocast=False, name="cluster_bias"
            )

    def _shares_projection(self, index):
        return not self.clusters.cutoffs or (self.share_tail_projections and index > 0)

    @property
    def output_shape(self):
        """Shape of the log-probabilities, shown in Keras' summary."""
        return (None, None, self.clusters.vocabulary_size)

    def logits(self, hidden, tables=None, projections=None):
        """Returns scores whose softmax are the probabilities; arguments and shape as in a call.

        Without `cutoffs` they are the products with the table. With `cutoffs` they are
        log-probabilities, because the products of a tail only compare ids of this tail.
        """
        if self.clusters.cutoffs:
            return self.call(hidden, tables, projections)
        (weights,) = self._cluster_weights(tables, projections)
        return self._head_logits(ops.cast(hidden, self.compute_dtype), weights)

    def call(self, hidden, tables=None, projections=None):
        hidden = ops.cast(hidden, self.compute_dtype)
        head, *tails = self._cluster_weights(tables, projections)
        head_log_probs = ops.log_softmax(self._head_logits(hidden, head), axis=-1)
        size = self.clusters.sizes[0]
        parts = [head_log_probs[..., :size]]
        for index, (table, bias, projection) in enumerate(tails):
            features = project_back(hidden, projection)
            logits = table_logits(features, table, bias)
            cluster_log_prob = head_log_probs[..., size + index : size + index + 1]
            parts.append(cluster_log_prob + ops.log_softmax(logits, axis=-1))
        return ops.concatenate(parts, axis=-1)

    def negative_log_likelihood(self, hidden, target_ids, tables=None, projections=None):
        """Scores targets, int `(B, T)`, from hidden states `(B, T, D)`.

        Other arguments are as in a call. Returns nats, float32 `(B, T)`, or float64 if the layer
        computes in it. Raises ValueError as a call, and for targets outside `[0, V)`.
        """
        check_token_ids(target_ids, self.clusters.vocabulary_size, "target_ids")
        if not self.built:
            self.build(hidden.shape)
        target_ids = ops.cast(target_ids, "int32")
        weights = self._cluster_weights(tables, projections)
        hidden = ops.reshape(ops.cast(hidden, self.compute_dtype), [-1, self.clusters.hidden_dim])
        flat_ids = ops.reshape(target_ids, [-1])  # [N]
        clusters = cluster_ids(flat_ids, self.clusters.cutoffs)
        # For the head, a target in a tail is the entry of its cluster.
        head_ids = ops.where(clusters == 0, flat_ids, self.clusters.sizes[0] - 1 + clusters)
        nll = functional.negative_log_likelihood(self._head_logits(hidden, weights[0]), head_ids)
        if self.clusters.cutoffs:
            total = 0.0
            # The number of tokens that are computed at a time changes no result. It is a multiple
            # of 8, the rows of a TPU's tile of float32.
            expected = self.clusters.tail_capacities(static_num_tokens(target_ids))
            limits = [
                max(8, _MAX_CHUNK_LOGITS // size // 8 * 8) for size in self.clusters.sizes[1:]
            ]
            capacities = list(map(min, expected, limits))
            for index, ids, group, capacity in self._tails(flat_ids, clusters, capacities):
                total = total + cluster_negative_log_likelihood(
                    hidden, ids, group, capacity, *weights[index]
                )
            nll = nll + total
        return ops.reshape(nll, ops.shape(target_ids))

    def _head_logits(self, hidden, weights):
        table, bias, projection = weights
        if self.clusters.cutoffs:
            # Appended to the table, so that ids and clusters are one product and one softmax.
            cluster_weight = ops.cast(self.cluster_weight, self.compute_dtype)
            table = ops.concatenate([table, cluster_weight], axis=0)
            bias = ops.concatenate([bias, self.cluster_bias], axis=0)
        features = project_back(hidden, projection)
        return table_logits(features, table, bias)

    def _cluster_weights(self, tables, projections):
        """Returns table, bias and projection of every cluster, with tables in the compute dtype."""
        tables = tables if self.tie_weights else self.tables
        tables = [ops.cast(table, self.compute_dtype) for table in tables]
        if self.clusters.division_factor == 1 and self.clusters.cutoffs:
            # The gradient of one split is one concatenation; slices would give a sum of whole
            # tables.
            tables = ops.split(tables[0], list(self.clusters.cutoffs), axis=0)
        projections = [
            self._shared_projection(index, projections)
            if self._shares_projection(index)
            else own_projection
            for index, own_projection in enumerate(self.projections)
        ]
        projections = [
            None if each is None else ops.cast(each, self.compute_dtype) for each in projections
        ]
        return list(zip(tables, self.biases, projections, strict=True))

    def _shared_projection(self, index, projections):
        shapes = self.clusters.projection_shapes
        place = min(index, len(shapes) - 1)
        return None if shapes[place] is None else projections[place]


def static_num_tokens(token_ids):
    """Returns the static number of tokens; `_UNKNOWN_NUM_TOKENS` if a size is unknown."""
    is_known = all(isinstance(size, int) for size in token_ids.shape)
    return math.prod(token_ids.shape) if is_known else _UNKNOWN_NUM_TOKENS
