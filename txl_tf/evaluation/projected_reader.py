"""Scores segments with keys and values remembered.

Shape letters used in this module: B rows, T segment length, M memory length.
"""

from typing import Any

import tensorflow as tf

from txl_tf.models.headwise_transformer_xl import HeadwiseTransformerXL
from txl_tf.models.projected_memory import ProjectedMemory
from txl_tf.models.projected_transformer_xl import ProjectedTransformerXL
from txl_tf.models.transformer_xl import TransformerXL

# Products of so many rows take the least time per token; more of them make large scores.
_TOKENS_PER_STEP = 256
# With heads apart the scores are small, and what a step copies of memory counts.
_TOKENS_PER_STEP_OF_ONE_ROW = 1024


class ProjectedReader:
    """Reads segments without projecting the memory again for each of them.

    It gives the numbers of a `MemoryReader`, sooner. Weights must not change
    while a text is read.

    Args:
        model: `TransformerXL`.
        heads_apart: bool. Whether a single row is read head by head, which is
            faster where TensorFlow's own kernels run on a processor with
            caches. Defaults to `False`.

    Raises:
        ValueError: If its positions do not let memory be projected.
    """

    def __init__(self, model: TransformerXL, heads_apart: bool = False) -> None:
        self._config = model.config
        self._model = ProjectedTransformerXL(model)
        self._model_of_one_row = self._model
        if heads_apart:
            self._model_of_one_row = HeadwiseTransformerXL(model)

    def initial_memory(self, batch_size: int) -> ProjectedMemory:
        """Memory of rows that have read nothing."""
        return self._model_for(batch_size).initial_memory(batch_size)

    def segments_per_step(self, num_rows: int) -> int:
        """How many segments of a row are best read at once.

        Args:
            num_rows: int. Rows that are read side by side.

        Returns:
            A positive int: as many as make the products large enough.
        """
        is_headwise = isinstance(self._model_for(num_rows), HeadwiseTransformerXL)
        num_tokens = _TOKENS_PER_STEP_OF_ONE_ROW if is_headwise else _TOKENS_PER_STEP
        return max(1, num_tokens // (num_rows * self._config.segment_length))

    @property
    def _memory_length(self) -> int:
        return self._config.memory_length if self._config.recurrence else 0

    def constants(self, num_rows: int, segments_per_step: int = 1) -> tuple[Any, ...]:
        """The keys of all distances, which depend on the weights alone.

        Args:
            num_rows: int. Rows that are read side by side.
            segments_per_step: int. Segments that are read at once.
        """
        model, segment_length = self._model_for(num_rows), self._config.segment_length
        at_once = model.tokens_at_once(segments_per_step * segment_length, segment_length)
        return model.position_keys(self._memory_length + at_once)

    def _model_for(self, num_rows: int) -> ProjectedTransformerXL:
        return self._model_of_one_row if num_rows == 1 else self._model

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
        model = self._model_for(token_ids.shape[0])
        return model.score(token_ids, target_ids, memory, constants, self._config.segment_length)
