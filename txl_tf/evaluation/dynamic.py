"""Dynamic evaluation: scores a segment, then takes a gradient step on it.

Shape letters used in this module: B rows, T segment length.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from txl_tf.config.experiment import EvaluationConfig
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.memory import Memory, RecurrentMemory

_EPSILON = 1e-3


class DynamicUpdate:
    """Update of weights by the gradients of a scored segment, and their restoration.

    With the gradient `g` of the segment's mean loss, the rate `r` and the decay
    `d`, the weights `w` become `w - r * g + d * (w0 - w)`, where `w0` are the
    trained weights. With statistics, `g` is divided by its root mean square
    over training text, plus epsilon, and `d` is multiplied by that root mean
    square over its mean over all weights, but not beyond 1: weights that learn
    little are drawn back little.

    Args:
        variables: the variables that learn.
        learning_rate: float. `r`.
        decay: float. `d`. Defaults to `0.0`.
        uses_statistics: bool. Whether gradients are scaled. Defaults to
            `False`.
        epsilon: optional float. Defaults to `None`: 1e-3. Without it,
            what never occurred in the training text would change without bounds.

    References:
     - [Krause et al., 2018](https://arxiv.org/abs/1709.07432)
     - [Krause et al., 2019](https://arxiv.org/abs/1904.08378)
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        learning_rate: float,
        decay: float = 0.0,
        *,
        uses_statistics: bool = False,
        epsilon: float | None = None,
    ) -> None:
        self._variables = list(variables)
        self._learning_rate = learning_rate
        self._decay = decay
        self._epsilon = _EPSILON if epsilon is None else epsilon
        self._trained = [_zeros_like(variable) for variable in self._variables]
        # Root mean squares of gradients over training text, one for each weight.
        self._scales = [_zeros_like(variable) for variable in self._variables]
        self._uses_statistics = uses_statistics

    def begin(self) -> None:
        """Takes the present weights for the trained ones."""
        for trained, variable in zip(self._trained, self._variables, strict=True):
            trained.assign(variable.value)

    def end(self) -> None:
        """Puts the trained weights back."""
        for trained, variable in zip(self._trained, self._variables, strict=True):
            variable.assign(trained)

    def clear_statistics(self) -> None:
        """Forgets all gradients of training text."""
        for scale in self._scales:
            scale.assign(tf.zeros_like(scale))

    def add_statistics(self, gradients: Sequence[tf.Tensor]) -> None:
        """Takes in the gradients of a segment of training text, a tensor for each variable."""
        for scale, gradient in zip(self._scales, gradients, strict=True):
            scale.assign_add(tf.square(gradient))

    def finish_statistics(self, num_segments: int) -> None:
        """Makes root mean squares of what was taken in, of so many segments."""
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
        # Where no gradient was ever different from zero there is nothing to draw back.
        return tf.where(mean > 0.0, mean, 1.0)


def _zeros_like(variable: keras.Variable) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)


class DynamicReader:
    """Scores segments and computes the gradients that the weights follow.

    No token is scored by weights that have seen it or anything after it. The
    memory stays as the weights of its time computed it.

    Args:
        engine: `InferenceEngine` that keeps hidden states.
        variables: the variables that learn.
        config: `EvaluationConfig` with a `dynamic_learning_rate`.

    Attributes:
        update: `DynamicUpdate` of the variables.
    """

    def __init__(self, engine: InferenceEngine, variables: list, config: EvaluationConfig) -> None:
        self._engine = engine
        self._variables = variables
        self.update = DynamicUpdate(
            variables,
            config.dynamic_learning_rate,
            config.dynamic_decay or 0.0,
            uses_statistics=config.dynamic_statistics_segments is not None,
            epsilon=config.dynamic_epsilon,
        )

    def score(
        self,
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        memory: Memory | RecurrentMemory,
        document_starts: tf.Tensor | None,
    ) -> tuple[tf.Tensor, Memory | RecurrentMemory, list[tf.Tensor]]:
        """Scores one segment of every row.

        Args:
            token_ids: int32 tensor `(B, T)`.
            target_ids: int32 tensor `(B, T)`.
            is_scored: bool tensor `(B, T)`; nothing else is learned from.
            memory: memory of the segments before.
            document_starts: bool tensor `(B, T)`, or `None`, see `TransformerXL`.

        Returns:
            Tuple of the negative log-likelihood in nats, float32 `(B, T)`; the
            next memory; and the gradients of the mean loss, a tensor for each
            variable.
        """
        with tf.GradientTape() as tape:
            nll, memory = self._engine.score(
                token_ids, target_ids, memory, document_starts=document_starts
            )
            scored = tf.where(is_scored, nll, 0.0)
            loss = tf.reduce_sum(scored) / tf.reduce_sum(tf.cast(is_scored, tf.float32))
        gradients = tape.gradient(loss, [variable.value for variable in self._variables])
        # Of embeddings they are sparse, and None where a weight has no part in the loss.
        dense = [
            tf.zeros(variable.shape) if gradient is None else tf.convert_to_tensor(gradient)
            for variable, gradient in zip(self._variables, gradients, strict=True)
        ]
        return nll, memory, dense
