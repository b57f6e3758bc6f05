"""Scores segments with keys and values remembered.

Shape letters used in this module: B rows, T segment length, M memory length.
"""

from typing import Any

import tensorflow as tf

from txl_tf.models.projected_memory import ProjectedMemory
from txl_tf.models.projected_transformer_xl import ProjectedTransformerXL
from txl_tf.models.transformer_xl import TransformerXL

# Products of so many rows take the least time per token; more of them make large scores.
_TOKENS_PER_STEP = 256


class ProjectedReader:
    """Reads segments without projecting the memory again for each of them.

    It gives the numbers of a `MemoryReader`, sooner. Weights must not change
    while a text is read.

    Args:
        model: `TransformerXL`.

    Raises:
        ValueError: If its positions do not let memory be projected.
    """

    def __init__(self, model: TransformerXL) -> None:
        self._config = model.config
        self._model = ProjectedTransformerXL(model)

    def initial_memory(self, batch_size: int) -> ProjectedMemory:
        """Memory of rows that have read nothing."""
        return self._model.initial_memory(batch_size)

    def segments_per_step(self, num_rows: int) -> int:
        """How many segments of a row are best read at once.

        Args:
            num_rows: int. Rows that are read side by side.

        Returns:
            A positive int: as many as make the products large enough.
        """
        return max(1, _TOKENS_PER_STEP // (num_rows * self._config.segment_length))

    def constants(self, segments_per_step: int = 1) -> tuple[Any, ...]:
        """The keys of all distances, which depend on the weights alone.

        Args:
            segments_per_step: int. Segments that are read at once.
        """
        memory_length = self._config.memory_length if self._config.recurrence else 0
        num_tokens = segments_per_step * self._config.segment_length
        return self._model.position_keys(memory_length + num_tokens)

    def __call__(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        document_starts: tf.Tensor,
        memory: ProjectedMemory,
        constants: tuple[Any, ...],
    ) -> tuple[tf.Tensor, ProjectedMemory]:
        """Scores one or more segments of every row.

        Args:
            token_ids: int32 tensor `(B, T)`, or of several segments `(B, S * T)`.
            target_ids: int32 tensor `(B, T)`.
            is_scored: bool tensor `(B, T)`; has no influence.
            document_starts: bool tensor `(B, T)`; has no influence.
            memory: `ProjectedMemory` of the segments before.
            constants: what `constants` returned.

        Returns:
            Tuple of the negative log-likelihood in nats, float32 `(B, T)`, and
            the next `ProjectedMemory`.
        """
        return self._model.score(
            token_ids, target_ids, memory, constants, self._config.segment_length
        )
