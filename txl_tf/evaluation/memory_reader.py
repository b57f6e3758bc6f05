"""Scores segments with a model as it is.

Shape letters used in this module: B rows, T segment length.
"""

from typing import Any

import tensorflow as tf

from txl_tf.evaluation.one_segment_reader import OneSegmentReader
from txl_tf.models.lstm_language_model import LSTMLanguageModel
from txl_tf.models.memory import Memory
from txl_tf.models.qrnn_language_model import QRNNLanguageModel
from txl_tf.models.recurrent_memory import RecurrentMemory
from txl_tf.models.transformer_xl import TransformerXL


class MemoryReader(OneSegmentReader):
    """Reads segments with the memory that the model itself carries.

    Args:
        model: any language model that `create_model` builds.
        masks_documents: bool. Whether no token sees what is before its
            document; a `TransformerXL` only. Defaults to `False`.
    """

    def __init__(
        self,
        model: TransformerXL | LSTMLanguageModel | QRNNLanguageModel,
        masks_documents: bool = False,
    ) -> None:
        self._model = model
        self._masks_documents = masks_documents

    def initial_memory(self, batch_size: int) -> Memory | RecurrentMemory:
        """Memory of rows that have read nothing."""
        return self._model.initial_memory(batch_size)

    def __call__(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        document_starts: tf.Tensor,
        memory: Memory | RecurrentMemory,
        constants: tuple[Any, ...] = (),
    ) -> tuple[tf.Tensor, Memory | RecurrentMemory]:
        """Scores one segment of every row.

        Args:
            token_ids: int32 tensor `(B, T)`.
            target_ids: int32 tensor `(B, T)`.
            is_scored: bool tensor `(B, T)`; has no influence.
            document_starts: bool tensor `(B, T)`.
            memory: memory of the segments before.
            constants: what `constants` returned.

        Returns:
            Tuple of the negative log-likelihood in nats, float32 `(B, T)`, and
            the next memory.
        """
        if not self._masks_documents:
            return self._model.score(token_ids, target_ids, memory)
        hidden, memory = self._model(token_ids, memory, document_starts=document_starts)
        return self._model.negative_log_likelihood(hidden, target_ids), memory
