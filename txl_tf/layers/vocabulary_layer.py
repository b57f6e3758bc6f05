"""Common part of the adaptive embedding and the adaptive softmax: arguments, checks, clusters."""

from typing import Any

import keras
import numpy as np

from txl_tf.config.model import VocabularyClusters


def check_token_ids(token_ids: Any, vocabulary_size: int, name: str = "token_ids") -> None:
    """Refuses ids that no vocabulary of this size has.

    Looked at are NumPy arrays, lists, and TensorFlow's eager tensors in the
    memory of the host. Everything else passes: within `tf.function` and
    other compiled functions there are no numbers yet, and asking an accelerator
    for them would stop it.

    Args:
        token_ids: ints of any shape.
        vocabulary_size: int.
        name: str. What they are called in the error.

    Raises:
        ValueError: If they are no integers, negative, or too large.
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


def _on_host(values: Any) -> np.ndarray | None:
    try:
        if isinstance(values, np.ndarray | np.generic | list | tuple | int | float):
            values = np.asarray(values)
            return values if values.dtype.kind in "biufc" else None
        if hasattr(values, "numpy") and "CPU" in str(getattr(values, "device", "")):
            return np.asarray(values.numpy())
    except (TypeError, ValueError, NotImplementedError):
        pass  # such as a list of tensors that have no numbers yet
    return None


class VocabularyLayer(keras.layers.Layer):
    """Base class of layers that have weights for every token id, cluster by cluster.

    The arguments are those of `AdaptiveEmbedding`.

    Attributes:
        clusters: the `VocabularyClusters` of these arguments.

    Raises:
        ValueError: If the arguments are not ones of `VocabularyClusters`.
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
        self.embeddings_initializer = _initializer(embeddings_initializer, 0.02)
        self.projection_initializer = _initializer(projection_initializer, 0.01)
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


def _initializer(given, stddev):
    if given is None:
        given = keras.initializers.RandomNormal(stddev=stddev)
    return keras.initializers.get(given)
