"""Dynamic evaluation: scores a segment, then takes a gradient step on it.

Shape letters used in this module: B rows, T segment length.
"""

import contextlib
from collections.abc import Iterator, Sequence

import keras
import tensorflow as tf

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.memory import Memory

_EPSILON = 1e-3


class DynamicEvaluation:
    """Scoring of segments by weights that follow the text, and their restoration.

    A token is never scored by weights that have seen it or a later token. The memory keeps the
    states of the weights that computed it.

    With the gradient `g` of the segment's mean loss, the rate `r` and the decay
    `d`, the weights `w` become `w - r * g + d * (w0 - w)`, where `w0` are the
    trained weights. With statistics, `g` is divided by its root mean square
    over training text plus epsilon, and `d` is multiplied by this root mean
    square relative to its mean over all weights, to at most 1: weights that learn
    little decay little. Without epsilon (1e-3 by default) tokens that never
    occurred in the training text would change without bounds.

    References:
     - [Krause et al., 2018](https://arxiv.org/abs/1709.07432)
     - [Krause et al., 2019](https://arxiv.org/abs/1904.08378)
    """

    def __init__(self, model: keras.Model, config: EvaluationConfig) -> None:
        self._engine = InferenceEngine(model, keeps="hidden_states")
        self._variables = list(model.trainable_variables)
        self._learning_rate = config.dynamic_learning_rate
        self._decay = config.dynamic_decay or 0.0
        self._epsilon = _EPSILON if config.dynamic_epsilon is None else config.dynamic_epsilon
        self._uses_statistics = config.dynamic_statistics_segments is not None
        self._trained = [_zeros_like(variable) for variable in self._variables]
        # Root mean square gradient over training text, for each weight.
        self._scales = [_zeros_like(variable) for variable in self._variables]

    def score(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        memory: Memory,
        document_starts: tf.Tensor | None,
    ) -> tuple[tf.Tensor, Memory, list[tf.Tensor]]:
        """Scores one segment `(B, T)` of every row.

        Only scored tokens are learned from. Returns the nats, float32 `(B, T)`, the next memory,
        and the gradients of the mean loss, a tensor for each variable.
        """
        with tf.GradientTape() as tape:
            nll, memory = self._engine.score(
                token_ids, target_ids, memory, document_starts=document_starts
            )
            scored = tf.where(is_scored, nll, 0.0)
            loss = tf.reduce_sum(scored) / tf.reduce_sum(tf.cast(is_scored, tf.float32))
        gradients = tape.gradient(loss, [variable.value for variable in self._variables])
        # Gradients of embeddings are sparse, and None if the loss does not depend on a weight.
        dense = [
            tf.zeros(variable.shape) if gradient is None else tf.convert_to_tensor(gradient)
            for variable, gradient in zip(self._variables, gradients, strict=True)
        ]
        return nll, memory, dense

    @contextlib.contextmanager
    def restored_weights(self) -> Iterator[None]:
        """Restores the trained weights at the end of the block."""
        for trained, variable in zip(self._trained, self._variables, strict=True):
            trained.assign(variable.value)
        try:
            yield
        finally:
            for trained, variable in zip(self._trained, self._variables, strict=True):
                variable.assign(trained)

    def clear_statistics(self) -> None:
        """Forgets all gradients of training text."""
        for scale in self._scales:
            scale.assign(tf.zeros_like(scale))

    def add_statistics(self, gradients: Sequence[tf.Tensor]) -> None:
        """Adds the gradients of a segment of training text, a tensor for each variable."""
        for scale, gradient in zip(self._scales, gradients, strict=True):
            scale.assign_add(tf.square(gradient))

    def finish_statistics(self, num_segments: int) -> None:
        """Computes root mean squares over `num_segments` segments."""
        for scale in self._scales:
            scale.assign(tf.sqrt(scale / num_segments))

    def apply(self, gradients: Sequence[tf.Tensor]) -> None:
        """Changes the weights by the gradients of a segment, a tensor for each variable."""
        mean_scale = self._mean_scale()
        parts = zip(self._variables, self._trained, self._scales, gradients, strict=True)
        for variable, trained, scale, gradient in parts:
            decay = self._decay
            if self._uses_statistics:
                gradient = gradient / (scale + self._epsilon)
                decay = tf.minimum(decay * scale / mean_scale, 1.0)
            value = variable.value
            variable.assign(value - self._learning_rate * gradient + decay * (trained - value))

    def _mean_scale(self) -> tf.Tensor:
        total = tf.add_n([tf.reduce_sum(scale) for scale in self._scales])
        mean = total / float(sum(scale.shape.num_elements() for scale in self._scales))
        # Without a nonzero gradient nothing decays.
        return tf.where(mean > 0.0, mean, 1.0)


def _zeros_like(variable: keras.Variable) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)
