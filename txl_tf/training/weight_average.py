"""The mean of the weights after many steps."""

from collections.abc import Sequence

import keras
import tensorflow as tf


class WeightAverage:
    """The running mean of the weights after each step from some step on.

    Averaged stochastic gradient descent as in Merity et al. (2018): training
    goes on from the weights, and the mean is what the trained model is used
    with. Up to its first step the mean is the weights themselves.

    Every replica keeps the mean of its own copy of the weights, which are the
    same everywhere, so nothing is sent.

    Args:
        variables: the trainable variables, created in the scope of the
            strategy this is made in.
        first_step: int. The first step of which the weights count; the steps
            of a run are counted from 1.

    References:
     - [Merity et al., 2018](https://arxiv.org/abs/1708.02182), Section 3
    """

    def __init__(self, variables: Sequence[keras.Variable], first_step: int) -> None:
        self._weights = list(variables)
        self._first_step = first_step
        self.variables = {
            variable.path: keras.Variable(
                variable.numpy(),
                dtype=variable.dtype,
                trainable=False,
                autocast=False,
                name=variable.path.replace("/", "_"),
            )
            for variable in self._weights
        }

    def update(self, step: tf.Tensor) -> None:
        """Takes the weights in; inside `strategy.run` only, after they were changed.

        Args:
            step: int tensor. Steps done, this one included.
        """
        count = tf.cast(step, tf.int64) - (self._first_step - 1)
        tf.distribute.get_replica_context().merge_call(self._update_all, args=(count,))

    def _update_all(self, strategy: tf.distribute.Strategy, count: tf.Tensor) -> None:
        def update_one(average: tf.Variable, weight: tf.Variable, count: tf.Tensor) -> None:
            weight = tf.convert_to_tensor(weight)
            share = 1.0 / tf.cast(tf.maximum(count, 1), weight.dtype)
            mean = average + (weight - average) * share
            average.assign(tf.where(count > 1, mean, weight))

        for average, weight in zip(self.variables.values(), self._weights, strict=True):
            strategy.extended.update(
                average.value, update_one, args=(weight.value, count), group=False
            )
