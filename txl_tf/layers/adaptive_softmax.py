"""Adaptive softmax over clusters of the vocabulary; a full softmax without cutoffs.

Shape letters used in this module: B rows, T segment length, N = B * T tokens, V vocabulary, D
hidden width, E embedding width, R token ids of one cluster, W width of one cluster.
"""

import keras
from keras import ops

from txl_tf import functional
from txl_tf.layers import cluster_loop
from txl_tf.layers.adaptive_embedding import VocabularyLayer, check_token_ids

_MAX_CHUNK_LOGITS = 2**26  # 256 MiB in float32


@keras.saving.register_keras_serializable(package="txl_tf")
class AdaptiveSoftmax(VocabularyLayer):
    """Adaptive softmax of Grave et al. (2017).

    Ids are sorted by falling frequency and cut into clusters. The head is a softmax over the ids
    of the first cluster and one entry per tail cluster; an id of a tail has the probability of
    its cluster times its probability within the cluster. A tail is computed only for its own
    targets, with static shapes and without dropping any, see `cluster_loop`. Without `cutoffs`
    this is the softmax over the whole vocabulary.

    Tables and projections have the same shapes as in an `AdaptiveEmbedding` with the same
    arguments, and can be its variables. All biases, and the weights of the tails' entries in the
    head, start at 0.

    Args:
        vocabulary_size: int. Number of token ids, `V`.
        hidden_dim: int. Width `D`.
        share_tail_projections: bool. If `True`, the tails use the projections of the embedding,
            which are then a call argument. With `cutoffs` the head has its own; without them the
            projection is always the embedding's.
        tie_weights: bool. If `True`, the tables are the embedding's and a call argument.
            Otherwise the layer has its own.
        capacities: optional ints. Number of tokens of each tail computed at a time. Defaults to
            the number expected by Zipf's law, bounded by 2**26 logits. Does not change the
            result.
        **kwargs: the other arguments of `AdaptiveEmbedding`: width, cutoffs and initializers of
            the layer's own tables and projections.

    Call arguments:
        hidden: float tensor `(B, T, D)`.
        tables: list of float tensors: `AdaptiveEmbedding.tables`. With
            `tie_weights`, and only then.
        projections: list of float tensors or `None`:
            `AdaptiveEmbedding.projections`. Only where they are shared.

    Returns:
        Log-probabilities of all tokens: float32 tensor `(B, T, V)`, float64 if the layer computes
        in float64. For the loss of targets use `negative_log_likelihood`, which computes only the
        tails of the targets.

    Raises:
        ValueError: If a size is not positive, `cutoffs` do not ascend within the vocabulary,
            `capacities` are not one positive number per tail, or `tables` or `projections` are
            missing or too few or many.

    References:
     - [Grave et al., 2017](https://arxiv.org/abs/1609.04309)
    """

    def __init__(
        self,
        vocabulary_size,
        hidden_dim,
        share_tail_projections=False,
        tie_weights=True,
        capacities=None,
        **kwargs,
    ):
        super().__init__(vocabulary_size, hidden_dim, **kwargs)
        self.share_tail_projections = share_tail_projections
        self.tie_weights = tie_weights
        self.capacities = None if capacities is None else tuple(capacities)
        self._check_capacities()

    def _check_capacities(self):
        capacities = self.capacities
        if capacities is None:
            return
        if len(capacities) != len(self.cutoffs) or any(each <= 0 for each in capacities):
            raise ValueError(
                "`capacities` must be one positive number per tail cluster. "
                f"Received: capacities={capacities}, cutoffs={self.cutoffs}"
            )

    def build(self, hidden_shape, **other_shapes):
        if not self.tie_weights:
            names = self._numbered("table", len(self.clusters.table_shapes))
            self.tables = [
                self._weight(name, shape, self.embeddings_initializer)
                for name, shape in zip(names, self.clusters.table_shapes, strict=True)
            ]
        sizes = self.clusters.sizes
        names = self._numbered("bias", len(sizes))
        self.biases = [
            self.add_weight(shape=(size,), initializer="zeros", autocast=False, name=name)
            for name, size in zip(names, sizes, strict=True)
        ]
        self.projections = [
            None
            if shape is None or self._shares_projection(index)
            else self._weight(f"projection_{index}", shape, self.projection_initializer)
            for index, shape in enumerate(self.clusters.output_projection_shapes)
        ]
        if self.cutoffs:
            count = len(self.cutoffs)
            self.cluster_weight = self.add_weight(
                shape=(count, self.embedding_dim), initializer="zeros", name="cluster_weight"
            )
            self.cluster_bias = self.add_weight(
                shape=(count,), initializer="zeros", autocast=False, name="cluster_bias"
            )

    @staticmethod
    def _numbered(name, count):
        return [name] if count == 1 else [f"{name}_{index}" for index in range(count)]

    def _weight(self, name, shape, initializer):
        return self.add_weight(shape=shape, initializer=initializer.clone(), name=name)

    def _shares_projection(self, index):
        return not self.cutoffs or (self.share_tail_projections and index > 0)

    @property
    def output_shape(self):
        """Shape of the log-probabilities, shown in Keras' summary."""
        return (None, None, self.vocabulary_size)

    def call(self, hidden, tables=None, projections=None):
        hidden = ops.cast(hidden, self.compute_dtype)
        head, *tails = self._cluster_weights(tables, projections)
        head_log_probs = ops.log_softmax(self._head_logits(hidden, head), axis=-1)
        size = self.clusters.sizes[0]
        parts = [head_log_probs[..., :size]]
        for index, (table, bias, projection) in enumerate(tails):
            features = cluster_loop.project_back(hidden, projection)
            logits = cluster_loop.table_logits(features, table, bias)
            of_cluster = head_log_probs[..., size + index : size + index + 1]
            parts.append(of_cluster + ops.log_softmax(logits, axis=-1))
        return ops.concatenate(parts, axis=-1)

    def negative_log_likelihood(self, hidden, target_ids, tables=None, projections=None):
        """Scores targets; a tail is computed for its own targets only.

        Args:
            hidden: float tensor `(B, T, D)`.
            target_ids: int tensor `(B, T)` with values in `[0, V)`.
            tables: as in a call.
            projections: as in a call.

        Returns:
            Nats: float32 tensor `(B, T)`, float64 if the layer computes in
            float64.

        Raises:
            ValueError: As a call, and if targets are known and not in `[0, V)`, see
                `check_token_ids`. In a compiled function the score of such a target is undefined.
        """
        check_token_ids(target_ids, self.vocabulary_size, "target_ids")
        if not self.built:
            self.build(hidden.shape)
        target_ids = ops.cast(target_ids, "int32")
        num_tokens = cluster_loop.static_num_tokens(target_ids)
        weights = self._cluster_weights(tables, projections)
        hidden = ops.reshape(ops.cast(hidden, self.compute_dtype), [-1, self.hidden_dim])
        flat_ids = ops.reshape(target_ids, [-1])  # [N]
        clusters = cluster_loop.cluster_ids(flat_ids, self.cutoffs)
        # For the head, a target in a tail is the entry of its cluster.
        head_ids = ops.where(clusters == 0, flat_ids, self.clusters.sizes[0] - 1 + clusters)
        nll = functional.negative_log_likelihood(self._head_logits(hidden, weights[0]), head_ids)
        if self.cutoffs:
            nll = nll + self._tails_nll(hidden, flat_ids, clusters, weights[1:], num_tokens)
        return ops.reshape(nll, ops.shape(target_ids))

    def _head_logits(self, hidden, weights):
        table, bias, projection = weights
        if self.cutoffs:
            # Appended to the table, so that ids and clusters are one product and one softmax.
            cluster_weight = ops.cast(self.cluster_weight, self.compute_dtype)
            table = ops.concatenate([table, cluster_weight], axis=0)
            bias = ops.concatenate([bias, self.cluster_bias], axis=0)
        features = cluster_loop.project_back(hidden, projection)
        return cluster_loop.table_logits(features, table, bias)

    def _tails_nll(self, hidden, flat_ids, clusters, weights, num_tokens):
        capacities = self._chunk_capacities(num_tokens)
        groups = cluster_loop.group_by_cluster(clusters, len(capacities) + 1, max(capacities))
        total = 0.0
        for index, group in enumerate(groups):
            first, end = self.clusters.spans[index + 1]
            total = total + cluster_loop.cluster_negative_log_likelihood(
                hidden,
                ops.clip(flat_ids - first, 0, end - first - 1),
                group,
                capacities[index],
                *weights[index],
            )
        return total

    def _chunk_capacities(self, num_tokens):
        if self.capacities is not None:
            return self.capacities
        expected = self.clusters.tail_capacities(num_tokens)
        # Multiples of 8, the rows of a TPU's tile of float32.
        bounds = [max(8, _MAX_CHUNK_LOGITS // size // 8 * 8) for size in self.clusters.sizes[1:]]
        return [min(pair) for pair in zip(expected, bounds, strict=True)]

    def _cluster_weights(self, tables, projections):
        """Returns table, bias and projection of every cluster, with tables in the compute dtype."""

        def cast(tensor):
            return None if tensor is None else ops.cast(tensor, self.compute_dtype)

        tables = [cast(table) for table in self._checked_tables(tables)]
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
        return list(zip(tables, self.biases, [cast(each) for each in used], strict=True))

    def _checked_tables(self, tables):
        if not self.tie_weights:
            if tables is not None:
                raise ValueError(
                    "A softmax with `tie_weights=False` has tables of its own. "
                    f"Received: tables={tables}"
                )
            return self.tables
        needed = len(self.clusters.table_shapes)
        if tables is None or len(tables) != needed:
            raise ValueError(
                f"A softmax with `tie_weights=True` needs the embedding's {needed} `tables`. "
                f"Received: tables={tables}"
            )
        return tables

    def _shared_projection(self, index, projections):
        shapes = self.clusters.projection_shapes
        place = min(index, len(shapes) - 1)
        if shapes[place] is None:
            return None
        if projections is None or len(projections) != len(shapes) or projections[place] is None:
            raise ValueError(
                f"Cluster {index} needs the embedding's projection {place} of {len(shapes)}. "
                f"Received: projections={projections}"
            )
        return projections[place]

    def compute_output_spec(self, hidden, tables=None, projections=None):
        dtype = "float64" if self.compute_dtype == "float64" else "float32"
        return keras.KerasTensor((*hidden.shape[:-1], self.vocabulary_size), dtype=dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "share_tail_projections": self.share_tail_projections,
            "tie_weights": self.tie_weights,
            "capacities": None if self.capacities is None else list(self.capacities),
        }
