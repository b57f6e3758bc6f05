"""Average of the weights over steps."""

from collections.abc import Sequence

import keras
import tensorflow as tf


class WeightAverage:
    """An average of the weights after each step from some step on.

    Training goes on from the weights, and the average is what the trained
    model is used with. Up to its first step the average is the weights
    themselves. From then on it is the mean over the steps, as in averaged
    stochastic gradient descent (Merity et al., 2018), or with a decay an
    exponential one, in which older steps count less (Polyak averaging as in
    Section 7.2 of Kingma and Ba, 2015, without a correction for the start,
    for it starts as the weights and not as zero).

    Every replica keeps the average of its own copy of the weights, which are
    the same everywhere, so nothing is sent.

    `variables` holds its whole state: the averages, and how many steps they
    are of. That is counted and not taken from the step, because steps that
    are skipped change no weight and have no share. A caller that takes an
    update back must take back all of `variables`.

    Args:
        variables: the trainable variables, created in the scope of the
            strategy this is made in.
        first_step: int. The first step of which the weights count; the steps
            of a run are counted from 1.
        decay: optional float. What the average keeps of itself in a step;
            None: all steps count the same.

    Raises:
        ValueError: If the decay is not between 0 and 1.

    References:
     - [Merity et al., 2018](https://arxiv.org/abs/1708.02182), Section 3
     - [Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980), Section 7.2
    """

    def __init__(
        self, variables: Sequence[keras.Variable], first_step: int, decay: float | None = None
    ) -> None:
        if decay is not None and not 0.0 < decay < 1.0:
            raise ValueError(f"`decay` must be between 0 and 1, or None. Received: decay={decay}")
        self._weights = list(variables)
        self._first_step = first_step
        self._decay = decay
        self.averages = {
            variable.path: keras.Variable(
                variable.numpy(),
                dtype=variable.dtype,
                trainable=False,
                autocast=False,
                name=variable.path.replace("/", "_"),
            )
            for variable in self._weights
        }
        self._num_steps = keras.Variable(
            0, dtype="int64", trainable=False, autocast=False, name="num_steps"
        )

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """All state by name: the averages by the paths of their weights, and `num_steps`."""
        return {**self.averages, "num_steps": self._num_steps}

    def update(self, step: tf.Tensor) -> None:
        """Takes the weights in; inside `strategy.run` only, after they were changed.

        Args:
            step: int tensor. Steps done, this one included.
        """
        is_counted = tf.cast(step, tf.int64) >= self._first_step
        count = self._num_steps.value + tf.cast(is_counted, tf.int64)
        tf.distribute.get_replica_context().merge_call(self._update_all, args=(count,))

    def _update_all(self, strategy: tf.distribute.Strategy, count: tf.Tensor) -> None:
        def update_one(average: tf.Variable, weight: tf.Variable, count: tf.Tensor) -> None:
            weight = tf.convert_to_tensor(weight)
            share = self._share(count, weight.dtype)
            mean = average + (weight - average) * share
            average.assign(tf.where(count > 1, mean, weight))

        for average, weight in zip(self.averages.values(), self._weights, strict=True):
            strategy.extended.update(
                average.value, update_one, args=(weight.value, count), group=False
            )
        strategy.extended.update(
            self._num_steps.value, lambda old, new: old.assign(new), args=(count,), group=False
        )

    def _share(self, count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        if self._decay is not None:
            return tf.constant(1.0 - self._decay, dtype)
        return 1.0 / tf.cast(tf.maximum(count, 1), dtype)
