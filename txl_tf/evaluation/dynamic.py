"""Dynamic evaluation: scores a segment, then takes a gradient step on it.

Shape letters used in this module: B rows, T segment length.
"""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.memory import Memory


class DynamicEvaluation:
    """Scoring of segments by weights that follow the text, and their restoration.

    A token is never scored by weights that have seen it or a later token. The memory keeps the
    states of the weights that computed it.

    With the gradient `g` of the segment's mean loss, the rate `r` and the decay
    `d`, the weights `w` become `w - r * g + d * (w0 - w)`, where `w0` are the
    trained weights.

    References:
     - [Krause et al., 2018](https://arxiv.org/abs/1709.07432)
    """

    def __init__(self, model: keras.Model, config: EvaluationConfig) -> None:
        self._engine = InferenceEngine(model, keeps="hidden_states")
        self._variables = list(model.trainable_variables)
        self._learning_rate = config.dynamic_learning_rate
        self._decay = config.dynamic_decay or 0.0
        self._trained = [
            tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
            for variable in self._variables
        ]

    def score(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        memory: Memory,
        document_starts: tf.Tensor | None,
    ) -> tuple[tf.Tensor, Memory]:
        """Scores one segment `(B, T)` of every row, then learns from its scored tokens.

        Returns the nats, float32 `(B, T)`, and the next memory.
        """
        with tf.GradientTape() as tape:
            nll, memory = self._engine.score(
                token_ids, target_ids, memory, document_starts=document_starts
            )
            scored_nll = tf.where(is_scored, nll, 0.0)
            loss = tf.reduce_sum(scored_nll) / tf.reduce_sum(tf.cast(is_scored, tf.float32))
        gradients = tape.gradient(loss, [variable.value for variable in self._variables])
        # Program order puts the assignments after the reads.
        parts = zip(self._variables, self._trained, gradients, strict=True)
        for variable, trained_weight, gradient in parts:
            # Gradients of embeddings are sparse, and None if the loss does not depend on a weight.
            dense = 0.0 if gradient is None else tf.convert_to_tensor(gradient)
            value = variable.value
            variable.assign(
                value - self._learning_rate * dense + self._decay * (trained_weight - value)
            )
        return nll, memory

    @contextlib.contextmanager
    def restored_weights(self) -> Iterator[None]:
        """Restores the trained weights at the end of the block."""
        for trained_weight, variable in zip(self._trained, self._variables, strict=True):
            trained_weight.assign(variable.value)
        try:
            yield
        finally:
            for trained_weight, variable in zip(self._trained, self._variables, strict=True):
                variable.assign(trained_weight)
