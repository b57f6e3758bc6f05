"""Scores segments with weights that follow the text.

Shape letters used in this module: B rows, T segment length.
"""

from typing import Any

import tensorflow as tf

from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.evaluation.dynamic_update import DynamicUpdate
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.memory import Memory
from txl_tf.models.recurrent_memory import RecurrentMemory


class DynamicReader:
    """Scores a segment first and learns from it after: dynamic evaluation.

    No token is scored by weights that have seen it or anything after it. The
    memory stays as the weights of its time computed it.

    Args:
        engine: `InferenceEngine` that keeps hidden states.
        variables: the variables that learn.
        config: `EvaluationConfig` with a `dynamic_learning_rate`.
        masks_documents: bool. Whether no token sees what is before its document.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        variables: list,
        config: EvaluationConfig,
        masks_documents: bool,
    ) -> None:
        self._engine = engine
        self._masks_documents = masks_documents
        self._variables = variables
        self.update = DynamicUpdate(
            variables,
            config.dynamic_learning_rate,
            config.dynamic_decay or 0.0,
            uses_statistics=config.dynamic_statistics_segments is not None,
            epsilon=config.dynamic_epsilon,
        )

    def __call__(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        document_starts: tf.Tensor,
        memory: Memory | RecurrentMemory,
        constants: tuple[Any, ...] = (),
    ) -> tuple[tf.Tensor, Memory | RecurrentMemory]:
        """Scores one segment of every row, then changes the weights.

        Args:
            token_ids: int32 tensor `(B, T)`.
            target_ids: int32 tensor `(B, T)`.
            is_scored: bool tensor `(B, T)`; nothing else is learned from.
            document_starts: bool tensor `(B, T)`.
            memory: memory of the segments before.
            constants: has no influence.

        Returns:
            Tuple of the negative log-likelihood in nats, float32 `(B, T)`, and
            the next memory.
        """
        batch = token_ids, target_ids, is_scored, document_starts
        nll, memory, gradients = self._gradients(*batch, memory)
        # The assignments come after the reading, as in the order of this program.
        self.update.apply(gradients)
        return nll, memory

    def measure(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        document_starts: tf.Tensor,
        memory: Memory | RecurrentMemory,
        constants: tuple[Any, ...] = (),
    ) -> tuple[tf.Tensor, Memory | RecurrentMemory]:
        """Scores a segment of training text and takes its gradients into the statistics.

        Arguments and results are those of a call.
        """
        batch = token_ids, target_ids, is_scored, document_starts
        nll, memory, gradients = self._gradients(*batch, memory)
        self.update.add_statistics(gradients)
        return nll, memory

    def _gradients(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        document_starts: tf.Tensor,
        memory: Memory | RecurrentMemory,
    ) -> tuple[tf.Tensor, Memory | RecurrentMemory, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            starts = document_starts if self._masks_documents else None
            nll, memory = self._engine.score(token_ids, target_ids, memory, document_starts=starts)
            scored = tf.where(is_scored, nll, 0.0)
            loss = tf.reduce_sum(scored) / tf.reduce_sum(tf.cast(is_scored, tf.float32))
        gradients = tape.gradient(loss, [variable.value for variable in self._variables])
        # Of embeddings they are sparse, and None where a weight has no part in the loss.
        dense = [
            tf.zeros(variable.shape) if gradient is None else tf.convert_to_tensor(gradient)
            for variable, gradient in zip(self._variables, gradients, strict=True)
        ]
        return nll, memory, dense
