"""Ratio of the last update to the weights, measured between two loops of steps."""

import math
from collections.abc import Sequence

import keras
import tensorflow as tf

# A copy of all weights would not fit beside the largest models.
_MAX_SAMPLED = 1 << 16


class UpdateRatio:
    """Norm of the change of all weights over the norm of the weights.

    It runs beside the training step without changing it. Of a variable with more than 65,536
    entries it samples evenly spaced rows.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, variables: Sequence[keras.Variable]
    ) -> None:
        self._strategy = strategy
        self._variables = list(variables)
        self._strides = [
            -(-math.prod(variable.shape) // _MAX_SAMPLED) for variable in self._variables
        ]
        self._read = tf.function(self._sampled, autograph=False)
        self._compare = tf.function(self._ratio, autograph=False)
        self._before: list[tf.Tensor] | None = None

    def remember(self) -> None:
        """Keeps the weights from before a step."""
        self._before = self._strategy.run(self._read)

    def measure(self) -> float:
        """Returns the ratio for the step since `remember`."""
        ratios = self._strategy.run(self._compare, args=(self._before,))
        self._before = None
        # The weights are the same on all replicas.
        return float(self._strategy.experimental_local_results(ratios)[0].numpy())

    def _sampled(self) -> list[tf.Tensor]:
        return [
            # Each keeps at least its first row.
            tf.cast(variable.value[:: min(stride, variable.shape[0])], tf.float32)
            if variable.shape
            else tf.cast(tf.identity(variable.value), tf.float32)
            for variable, stride in zip(self._variables, self._strides, strict=True)
        ]

    def _ratio(self, before: list[tf.Tensor]) -> tf.Tensor:
        changed = weighed = tf.constant(0.0)
        for variable, old, new in zip(self._variables, before, self._sampled(), strict=True):
            scale = math.prod(variable.shape) / math.prod(new.shape)
            changed += scale * tf.reduce_sum(tf.square(new - old))
            weighed += scale * tf.reduce_sum(tf.square(new))
        return tf.sqrt(tf.math.divide_no_nan(changed, weighed))
