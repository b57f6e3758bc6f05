"""Loops over the tokens of one cluster of a vocabulary, and their gradients.

Compilers for accelerators need static shapes, but the number of rare tokens depends on the
batch. Here tokens are grouped by cluster, and a loop processes each group in chunks of a fixed
capacity: no turn for an empty group, one in the common case, more if the capacity is too
small. So no token is dropped. Free places of the last chunk of a group are computed for other
tokens, and their results have no effect.

A loop of unknown length has no reverse-mode gradient, so the gradients are written out: the
backward pass is a second loop, which computes a chunk's logits again instead of keeping them.

Shape letters used in this module: N tokens, D hidden width, R token ids of one cluster, W width of
one cluster, C capacity of a chunk.
"""

from keras import ops

from txl_tf import functional


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

    return ops.custom_gradient(forward)(
        hidden, target_ids, *group, *_as_tensors(table, bias, projection)
    )


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
        # The share of other tokens is 0. With the large number their exp() is 0 too, because an
        # infinite one times 0 would be NaN.
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
