"""Adaptive embedding and softmax over clusters of the vocabulary; one table without cutoffs.

Compilers for accelerators need static shapes, but the number of rare tokens depends on the
batch. Here tokens are grouped by cluster, and a loop processes each group in chunks of a fixed
capacity: no turn for an empty group, one in the common case, more if the capacity is too
small. So no token is dropped, and no cluster is computed for tokens of another one.

A loop of unknown length has no reverse-mode gradient, so the gradients are written out: the
backward pass is a second loop, which computes a chunk's logits again instead of keeping them.

Shape letters used in this module: B rows, T segment length, N = B * T tokens, V vocabulary, D
hidden width, E embedding width, R token ids of one cluster, W width of one cluster, C capacity of
a chunk.
"""

import dataclasses
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_tf import functional
from txl_tf.config.model import VocabularyClusters
from txl_tf.layers.feed_forward import ConfiguredLayer, normal_unless

_MAX_CHUNK_LOGITS = 2**26  # 256 MiB in float32
_UNKNOWN_NUM_TOKENS = 1024
"""Number of tokens assumed for capacities if it is unknown."""


def check_token_ids(token_ids: Any, vocabulary_size: int, name: str = "token_ids") -> None:
    """Raises ValueError for ids outside the vocabulary, if they are known in host memory.

    In compiled functions there are no values yet, and reading them from an accelerator would stall
    it. There the backend returns zeros or another row for such an id.
    """
    values = _on_host(token_ids)
    if values is None or not values.size:
        return
    if values.dtype.kind not in "iu":
        raise ValueError(f"`{name}` must be integers. Received: {name} of type {values.dtype}")
    least, most = values.min(), values.max()
    if least < 0 or most >= vocabulary_size:
        raise ValueError(
            f"`{name}` must be in [0, {vocabulary_size}). Received: from {least} to {most}"
        )


def check_rank(
    token_ids: Any, ranks: tuple[int, ...], expected: str, name: str = "token_ids"
) -> None:
    """Raises ValueError for token ids that are known to have another rank."""
    shape = getattr(token_ids, "shape", ())
    rank = shape.rank if hasattr(shape, "rank") else len(shape)  # None in TensorFlow, if unknown
    if rank is not None and rank not in ranks:
        found = f"shape {tuple(shape)}" if shape else type(token_ids).__name__
        raise ValueError(f"`{name}` must be a tensor {expected}. Received: {found}")


def _on_host(values: Any) -> np.ndarray | None:
    try:
        if isinstance(values, np.ndarray | np.generic | list | tuple | int | float):
            values = np.asarray(values)
            return values if values.dtype.kind in "biufc" else None
        if hasattr(values, "numpy") and "CPU" in str(getattr(values, "device", "")):
            return np.asarray(values.numpy())
    except (TypeError, ValueError, NotImplementedError):
        pass  # for example a list of symbolic tensors
    return None


class VocabularyLayer(ConfiguredLayer):
    """Base class of layers that have weights for every token id, cluster by cluster."""

    _arguments: tuple[str, ...] = (
        *(field.name for field in dataclasses.fields(VocabularyClusters)),
        "embeddings_initializer",
        "projection_initializer",
    )

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
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.embedding_dim = hidden_dim if embedding_dim is None else embedding_dim
        self.cutoffs = tuple(cutoffs)
        self.division_factor = division_factor
        self.project_same_dim = project_same_dim
        self.embeddings_initializer = normal_unless(embeddings_initializer)
        self.projection_initializer = normal_unless(projection_initializer, 0.01)
        names = (field.name for field in dataclasses.fields(VocabularyClusters))
        self.clusters = VocabularyClusters(**{name: getattr(self, name) for name in names})

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
    width, as in Baevski and Auli (2019), and is looked up and projected only for its own tokens.
    With `division_factor=1` there is one table `(V, E)` with one projection `(E, D)`, or none if
    `E` is `D`.

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
        shapes = self.clusters.table_shapes
        # Only the rows that are looked up are cast, not the whole table.
        self.tables = self._weights("table", shapes, self.embeddings_initializer, autocast=False)
        shapes = self.clusters.projection_shapes
        self.projections = self._weights("projection", shapes, self.projection_initializer)

    def __call__(self, token_ids, *args, **kwargs):
        check_token_ids(token_ids, self.vocabulary_size)
        return super().__call__(token_ids, *args, **kwargs)

    def compute_output_shape(self, token_ids_shape):
        return (*token_ids_shape, self.hidden_dim)

    def call(self, token_ids):
        token_ids = ops.cast(token_ids, "int32")
        flat_ids = ops.reshape(token_ids, [-1])  # [N]
        embedded = self._lookup_head(flat_ids)  # [N, D]
        if len(self.tables) > 1:
            capacities = self.clusters.tail_capacities(static_num_tokens(token_ids))
            tails = self._tails(flat_ids, cluster_ids(flat_ids, self.cutoffs), capacities)
            for index, ids, group, capacity in tails:
                weights = self.tables[index], self.projections[index]
                embedded = embedded + cluster_embeddings(
                    ids, group, capacity, self.compute_dtype, *weights
                )
        embedded = ops.reshape(embedded, (*ops.shape(token_ids), self.hidden_dim))
        return embedded * self.hidden_dim**0.5

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
    its cluster times its probability within the cluster. A tail is computed only for its own
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
        ValueError: If sizes or `cutoffs` do not fit, or `tables` or `projections` are missing or
            too few or many.

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
        clusters, zeros = self.clusters, keras.initializers.Zeros()
        if not self.tie_weights:
            self.tables = self._weights("table", clusters.table_shapes, self.embeddings_initializer)
        shapes = [(size,) for size in clusters.sizes]
        self.biases = self._weights("bias", shapes, zeros, autocast=False)
        shapes = [
            None if self._shares_projection(index) else shape
            for index, shape in enumerate(clusters.output_projection_shapes)
        ]
        self.projections = self._weights("projection", shapes, self.projection_initializer)
        if self.cutoffs:
            count = len(self.cutoffs)
            self.cluster_weight = self.add_weight(
                shape=(count, self.embedding_dim), initializer="zeros", name="cluster_weight"
            )
            self.cluster_bias = self.add_weight(
                shape=(count,), initializer="zeros", autocast=False, name="cluster_bias"
            )

    def _shares_projection(self, index):
        return not self.cutoffs or (self.share_tail_projections and index > 0)

    @property
    def output_shape(self):
        """Shape of the log-probabilities, shown in Keras' summary."""
        return (None, None, self.vocabulary_size)

    def logits(self, hidden, tables=None, projections=None):
        """Returns scores whose softmax are the probabilities; arguments and shape as in a call.

        They are the products with the table. With `cutoffs` the tails have no scores beside those
        of the head, and all scores are log-probabilities.
        """
        if self.cutoffs:
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
            of_cluster = head_log_probs[..., size + index : size + index + 1]
            parts.append(of_cluster + ops.log_softmax(logits, axis=-1))
        return ops.concatenate(parts, axis=-1)

    def negative_log_likelihood(self, hidden, target_ids, tables=None, projections=None):
        """Scores targets, int `(B, T)`, from hidden states `(B, T, D)`.

        Other arguments are as in a call. Returns nats, float32 `(B, T)`, or float64 if the layer
        computes in it. Raises ValueError as a call, and for targets outside `[0, V)`.
        """
        check_token_ids(target_ids, self.vocabulary_size, "target_ids")
        if not self.built:
            self.build(hidden.shape)
        target_ids = ops.cast(target_ids, "int32")
        weights = self._cluster_weights(tables, projections)
        hidden = ops.reshape(ops.cast(hidden, self.compute_dtype), [-1, self.hidden_dim])
        flat_ids = ops.reshape(target_ids, [-1])  # [N]
        clusters = cluster_ids(flat_ids, self.cutoffs)
        # For the head, a target in a tail is the entry of its cluster.
        head_ids = ops.where(clusters == 0, flat_ids, self.clusters.sizes[0] - 1 + clusters)
        nll = functional.negative_log_likelihood(self._head_logits(hidden, weights[0]), head_ids)
        if self.cutoffs:
            total = 0.0
            capacities = self._chunk_capacities(static_num_tokens(target_ids))
            for index, ids, group, capacity in self._tails(flat_ids, clusters, capacities):
                total = total + cluster_negative_log_likelihood(
                    hidden, ids, group, capacity, *weights[index]
                )
            nll = nll + total
        return ops.reshape(nll, ops.shape(target_ids))

    def _head_logits(self, hidden, weights):
        table, bias, projection = weights
        if self.cutoffs:
            # Appended to the table, so that ids and clusters are one product and one softmax.
            cluster_weight = ops.cast(self.cluster_weight, self.compute_dtype)
            table = ops.concatenate([table, cluster_weight], axis=0)
            bias = ops.concatenate([bias, self.cluster_bias], axis=0)
        features = project_back(hidden, projection)
        return table_logits(features, table, bias)

    def _chunk_capacities(self, num_tokens):
        """Returns how many tokens of each tail are computed at a time, which changes no result."""
        expected = self.clusters.tail_capacities(num_tokens)
        # Multiples of 8, the rows of a TPU's tile of float32.
        bounds = [max(8, _MAX_CHUNK_LOGITS // size // 8 * 8) for size in self.clusters.sizes[1:]]
        return [min(pair) for pair in zip(expected, bounds, strict=True)]

    def _cluster_weights(self, tables, projections):
        """Returns table, bias and projection of every cluster, with tables in the compute dtype."""
        needed = len(self.clusters.table_shapes) if self.tie_weights else 0
        if len(tables or ()) != needed:
            raise ValueError(
                f"A softmax with tie_weights={self.tie_weights} needs {needed} `tables` of the "
                f"embedding. Received: tables={tables}"
            )
        tables = [ops.cast(table, self.compute_dtype) for table in tables or self.tables]
        if self.division_factor == 1 and self.cutoffs:
            # The gradient of one split is one concatenation; slices would give a sum of whole
            # tables.
            tables = ops.split(tables[0], list(self.cutoffs), axis=0)
        used = [
            self._shared_projection(index, projections)
            if self._shares_projection(index)
            else own_projection
            for index, own_projection in enumerate(self.projections)
        ]
        used = [None if each is None else ops.cast(each, self.compute_dtype) for each in used]
        return list(zip(tables, self.biases, used, strict=True))

    def _shared_projection(self, index, projections):
        shapes = self.clusters.projection_shapes
        place = min(index, len(shapes) - 1)
        if shapes[place] is None:
            return None
        if projections is None or len(projections) != len(shapes) or projections[place] is None:
            raise ValueError(
                f"`projections` must be the {len(shapes)} projections of the embedding. "
                f"Received: projections={projections}"
            )
        return projections[place]

    def compute_output_spec(self, hidden, tables=None, projections=None):
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        return keras.KerasTensor((*hidden.shape[:-1], self.vocabulary_size), dtype=dtype)


def static_num_tokens(token_ids):
    """Returns the static number of tokens; `_UNKNOWN_NUM_TOKENS` if a size is unknown."""
    is_known = all(isinstance(size, int) for size in token_ids.shape)
    return math.prod(token_ids.shape) if is_known else _UNKNOWN_NUM_TOKENS


def cluster_ids(token_ids, cutoffs):
    """Returns the cluster of each token, int32 of the same shape; `cutoffs` ascend."""
    # Sums of comparisons fuse with the surrounding code; a search would be a loop or a gather.
    clusters = ops.zeros_like(token_ids)
    for cutoff in cutoffs:
        clusters = clusters + ops.cast(token_ids >= cutoff, "int32")
    return clusters


def group_by_cluster(clusters, num_clusters, padding):
    """Sorts tokens so that each cluster is contiguous.

    Returns a group per tail cluster, without the first cluster: the indices of all tokens in
    order of their clusters, int32 `(N + padding,)`, and the scalars where the cluster begins and
    ends. `padding` is at least the largest capacity, so that the last chunk is full.
    """
    num_tokens = ops.shape(clusters)[0]
    # Keys are distinct, so the order does not depend on the backend's sort.
    keys = clusters * num_tokens + ops.arange(num_tokens, dtype="int32")
    order = ops.pad(ops.cast(ops.argsort(keys), "int32"), [[0, padding]])
    ends = [ops.sum(ops.cast(clusters <= i, "int32")) for i in range(num_clusters)]
    return [(order, ends[i - 1], ends[i]) for i in range(1, num_clusters)]


def for_each_chunk(update, carry, group, capacity):
    """Loops over the tokens of one cluster in chunks, and returns the last carried tensors.

    `update` takes the indices of a chunk's tokens, int32 `(C,)`, a mask of members of the group,
    bool `(C,)`, and the carried tensors, and returns a tuple of the new ones.
    """
    order, first, end = group

    def is_unfinished(at, *carried):
        return at < end

    def step(at, *carried):
        # The order is padded because XLA moves back a slice that would pass the end.
        places = ops.slice(order, [at], [capacity])
        is_member = at + ops.arange(capacity, dtype="int32") < end
        return (at + capacity, *update(places, is_member, *carried))

    return tuple(ops.while_loop(is_unfinished, step, (first, *carry)))[1:]


def cluster_embeddings(token_ids, group, capacity, dtype, table, projection=None):
    """Looks up the tokens of one cluster and projects them: `(N, D)`, 0 for other tokens.

    Ids `(N,)` count from the first of the cluster, and are in `[0, R)` for other tokens too. The
    table is `(R, W)`, the projection `(W, D)`.
    """

    def forward(token_ids, order, first, end, *weights):
        chunks = ((order, first, end), capacity)

        def gradient(*args, upstream=None):
            # Some backends name the argument, others do not.
            upstream = args[0] if upstream is None else upstream
            return (None,) * 4 + _embedding_gradients(token_ids, chunks, weights, upstream)

        return _embeddings(token_ids, chunks, weights, dtype), gradient

    return ops.custom_gradient(forward)(token_ids, *group, *_as_tensors(table, projection))


def _embeddings(token_ids, chunks, weights, dtype):
    table, *projection = weights
    width = projection[0].shape[1] if projection else table.shape[1]

    def update(places, is_member, embedded):
        rows = _rows(token_ids, places, table, dtype)
        rows = ops.matmul(rows, projection[0]) if projection else rows  # [C, D]
        rows = ops.where(ops.expand_dims(is_member, 1), rows, ops.zeros_like(rows))
        return (_add_at(embedded, places, rows),)

    return for_each_chunk(update, (ops.zeros((ops.shape(token_ids)[0], width), dtype),), *chunks)[0]


def _embedding_gradients(token_ids, chunks, weights, upstream):
    table, *projection = weights

    def update(places, is_member, table_gradient, *projection_gradient):
        slope = ops.take(upstream, places, axis=0)  # [C, D]
        slope = ops.where(ops.expand_dims(is_member, 1), slope, ops.zeros_like(slope))
        if projection:
            rows = _rows(token_ids, places, table, slope.dtype)
            projection_gradient = (_add_product(projection_gradient[0], rows, slope),)
            slope = ops.matmul(slope, ops.transpose(projection[0]))  # [C, W]
        slope = ops.cast(slope, table_gradient.dtype)
        ids = ops.take(token_ids, places, axis=0)
        return (_add_at(table_gradient, ids, slope), *projection_gradient)

    return _gradients(update, weights, chunks)


def cluster_negative_log_likelihood(
    hidden, target_ids, group, capacity, table, bias, projection=None
):
    """Computes the nats `(N,)` of the targets within one cluster, 0 for those in other clusters.

    Target ids count from its first id, and are in `[0, R)` for other targets too. At most `C * R`
    logits exist at a time. The table is `(R, W)`, the bias `(R,)` and the projection `(W, D)`.
    """

    def forward(hidden, target_ids, order, first, end, *weights):
        chunks = ((order, first, end), capacity)
        normalizers, target_logits = _normalizers(hidden, target_ids, chunks, weights)

        def gradient(*args, upstream=None):
            # Some backends name the argument, others do not.
            upstream = args[0] if upstream is None else upstream
            gradients = _nll_gradients(hidden, target_ids, chunks, weights, normalizers, upstream)
            return gradients[:1] + (None,) * 4 + gradients[1:]

        return normalizers - target_logits, gradient

    weights = _as_tensors(table, bias, projection)
    return ops.custom_gradient(forward)(hidden, target_ids, *group, *weights)


def _normalizers(hidden, target_ids, chunks, weights):
    def update(places, is_member, normalizers, target_logits):
        _, _, logits = _chunk_logits(hidden, places, weights)  # [C, R]
        ids = ops.take(target_ids, places, axis=0)
        normalizer = ops.logsumexp(logits, axis=-1)
        target_logit = ops.take_along_axis(logits, ops.expand_dims(ids, 1), axis=1)[:, 0]
        # Places beyond the group belong to other tokens; zeros are added to them.
        nothing = ops.zeros_like(normalizer)
        return (
            _add_at(normalizers, places, ops.where(is_member, normalizer, nothing)),
            _add_at(target_logits, places, ops.where(is_member, target_logit, nothing)),
        )

    zeros = functional.at_least_float32(ops.zeros_like(hidden[:, 0]))  # [N]
    return for_each_chunk(update, (zeros, zeros), *chunks)


def _nll_gradients(hidden, target_ids, chunks, weights, normalizers, upstream):
    table, bias, *projection = weights

    def update(places, is_member, hidden_gradient, table_gradient, bias_gradient, *rest):
        rows, features, logits = _chunk_logits(hidden, places, weights)
        # exp() of a logit minus the large number is 0, so other tokens have no effect.
        normalizer = ops.where(
            is_member, ops.take(normalizers, places, axis=0), -functional.MASKED_SCORE
        )
        share = ops.where(is_member, ops.take(upstream, places, axis=0), 0.0)
        ids = ops.take(target_ids, places, axis=0)
        # One comparison per logit, where a scatter would pass over them a second time.
        is_target = ops.expand_dims(ids, 1) == ops.arange(bias.shape[0], dtype="int32")
        slope = ops.exp(logits - ops.expand_dims(normalizer, 1)) - ops.cast(is_target, logits.dtype)
        slope = slope * ops.expand_dims(share, 1)  # [C, R]
        bias_gradient = bias_gradient + ops.sum(slope, axis=0)
        slope = ops.cast(slope, features.dtype)
        table_gradient = _add_product(table_gradient, slope, features)
        slope = ops.matmul(slope, table)  # [C, W]
        if projection:
            rest = (_add_product(rest[0], slope, rows),)
            slope = ops.matmul(slope, projection[0])  # [C, D]
        slope = ops.cast(slope, hidden_gradient.dtype)
        hidden_gradient = _add_at(hidden_gradient, places, slope)
        return (hidden_gradient, table_gradient, bias_gradient, *rest)

    return _gradients(update, (hidden, *weights), chunks)


def _gradients(update, tensors, chunks):
    """Sums the gradients of all chunks in float32, and casts them to the tensors' dtypes."""
    zeros = tuple(functional.at_least_float32(ops.zeros_like(tensor)) for tensor in tensors)
    sums = for_each_chunk(update, zeros, *chunks)
    return tuple(ops.cast(each, tensor.dtype) for each, tensor in zip(sums, tensors, strict=True))


def _chunk_logits(hidden, places, weights):
    table, bias, *projection = weights
    rows = ops.take(hidden, places, axis=0)  # [C, D]
    features = project_back(rows, projection[0] if projection else None)  # [C, W]
    return rows, features, table_logits(features, table, bias)


def project_back(hidden, projection):
    """Projects `(..., D)` to `(..., W)` by a transposed projection `(W, D)`, if given."""
    return hidden if projection is None else ops.matmul(hidden, ops.transpose(projection))


def table_logits(features, table, bias):
    """Returns logits `(..., R)` of features `(..., W)` and a table `(R, W)`, at least float32."""
    logits = functional.at_least_float32(ops.matmul(features, ops.transpose(table)))
    return logits + ops.cast(bias, logits.dtype)


def _as_tensors(*weights):
    # TensorFlow would want gradients of captured variables separately.
    return [ops.copy(weight) for weight in weights if weight is not None]


def _rows(token_ids, places, table, dtype):
    ids = ops.take(token_ids, places, axis=0)
    return ops.cast(ops.take(table, ids, axis=0), dtype)  # [C, W]


def _add_at(tensor, places, values):
    return ops.scatter_update(tensor, ops.expand_dims(places, 1), values, reduction="add")


def _add_product(total, left, right):
    """Adds a sum over tokens of outer products, `(C, A)` and `(C, B)` to `(A, B)`."""
    return total + ops.cast(ops.matmul(ops.transpose(left), right), total.dtype)
