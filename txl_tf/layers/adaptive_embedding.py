"""Token embedding with narrower vectors for rarer tokens; one table without cutoffs.

A compiled program cannot refuse an id beyond the table: the backend returns zeros or
another row.

Shape letters used in this module: B rows, T segment length, N = B * T tokens, V vocabulary, D
hidden width, E embedding width, R token ids of one cluster, W width of one cluster.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from txl_tf.config.model import VocabularyClusters
from txl_tf.layers import cluster_loop
from txl_tf.layers.feed_forward import normal_unless


def check_token_ids(token_ids: Any, vocabulary_size: int, name: str = "token_ids") -> None:
    """Refuses ids outside the vocabulary; ValueError for ids of any shape, called `name`.

    It checks NumPy arrays, lists, and TensorFlow's eager tensors in host memory. Everything else
    passes: in compiled functions there are no values yet, and reading them from an accelerator
    would stall it.
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


class VocabularyLayer(keras.layers.Layer):
    """Base class of layers that have weights for every token id, cluster by cluster.

    The arguments are the same as in `AdaptiveEmbedding`.

    Attributes:
        clusters: `VocabularyClusters` made from the arguments.

    Raises:
        ValueError: If the arguments are invalid for `VocabularyClusters`.
    """

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
        self.clusters = VocabularyClusters(
            vocabulary_size=vocabulary_size,
            hidden_dim=hidden_dim,
            embedding_dim=self.embedding_dim,
            cutoffs=self.cutoffs,
            division_factor=division_factor,
            project_same_dim=project_same_dim,
        )

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "embedding_dim": self.embedding_dim,
            "cutoffs": list(self.cutoffs),
            "division_factor": self.division_factor,
            "project_same_dim": self.project_same_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "projection_initializer": keras.initializers.serialize(self.projection_initializer),
        }


@keras.saving.register_keras_serializable(package="txl_tf")
class AdaptiveEmbedding(VocabularyLayer):
    """Token embedding by clusters, projected to `D` and scaled by `sqrt(D)`.

    Ids are sorted by falling frequency and cut into clusters. Each cluster has a table of its own
    width, as in Baevski and Auli (2019), "Adaptive input representations". A cluster is looked up
    and projected only for its own tokens, with static shapes and without dropping any, see
    `cluster_loop`.

    With `division_factor=1` all rows are equally wide, and there is one table
    `(V, E)` with one projection `(E, D)`, or none if `E` is `D`.

    Args:
        vocabulary_size: int. Number of token ids, `V`.
        hidden_dim: int. Width `D`.
        embedding_dim: optional int. Width `E` of the first cluster; `D` by
            default.
        cutoffs: ascending ints. The first id of every cluster but the first.
        division_factor: int. Cluster `i` is `E // division_factor**i` wide.
        project_same_dim: bool. If `True`, a cluster of width `D` is projected too; no effect if
            `division_factor` is 1.
        embeddings_initializer: initializer of the tables. Defaults to a normal
            distribution of stddev 0.02.
        projection_initializer: initializer of the projections. Defaults to a
            normal distribution of stddev 0.01.
        **kwargs: other keyword arguments passed to `keras.layers.Layer`.

    Attributes:
        tables: list of the variables `(R, W)` of all clusters, or of one
            `(V, E)`.
        projections: list of variables `(W, D)` in the same order, `None` where
            there is no projection.

    Call arguments:
        token_ids: int tensor `(B, T)` with values in `[0, V)`.

    Returns:
        Float tensor `(B, T, D)`.

    Raises:
        ValueError: If a size is not positive, a cluster would have no width, or `cutoffs` do not
            ascend within the vocabulary; if ids are known and not in `[0, V)`, see
            `check_token_ids`. In a compiled function the row of such an id is undefined.

    References:
     - [Baevski and Auli, 2019](https://arxiv.org/abs/1809.10853)
    """

    def build(self, token_ids_shape):
        has_one_table = len(self.clusters.table_shapes) == 1
        self.tables = []
        self.projections = []
        shapes = zip(self.clusters.table_shapes, self.clusters.projection_shapes, strict=True)
        for index, (table_shape, projection_shape) in enumerate(shapes):
            suffix = "" if has_one_table else f"_{index}"
            # Only the rows that are looked up are cast, not the whole table.
            table = self.add_weight(
                shape=table_shape,
                initializer=self.embeddings_initializer.clone(),
                autocast=False,
                name=f"table{suffix}",
            )
            projection = None
            if projection_shape is not None:
                projection = self.add_weight(
                    shape=projection_shape,
                    initializer=self.projection_initializer.clone(),
                    name=f"projection{suffix}",
                )
            self.tables.append(table)
            self.projections.append(projection)

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
            embedded = self._add_tails(
                embedded, flat_ids, cluster_loop.static_num_tokens(token_ids)
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

    def _add_tails(self, embedded, flat_ids, num_tokens):
        capacities = self.clusters.tail_capacities(num_tokens)
        groups = cluster_loop.group_by_cluster(
            cluster_loop.cluster_ids(flat_ids, self.cutoffs), len(self.tables), max(capacities)
        )
        for index, (group, capacity) in enumerate(zip(groups, capacities, strict=True), start=1):
            first, end = self.clusters.spans[index]
            embedded = embedded + cluster_loop.cluster_embeddings(
                ops.clip(flat_ids - first, 0, end - first - 1),
                group,
                capacity,
                self.compute_dtype,
                self.tables[index],
                self.projections[index],
            )
        return embedded

    def compute_output_spec(self, token_ids):
        return keras.KerasTensor((*token_ids.shape, self.hidden_dim), dtype=self.compute_dtype)
