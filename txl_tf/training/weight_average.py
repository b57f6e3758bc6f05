"""Average of the weights of a run, and what begins it."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from txl_tf.training.schedules import stored_figures


class NonMonotoneTrigger:
    """The moment from which weights are averaged, found by evaluations.

    It is when a loss is above the least of all losses but the last `n`: for
    `n` evaluations and this one nothing was gained. That begins the average
    where more training only moves about an optimum (NT-ASGD). Once on, it
    stays on.

    `variables` holds its whole state, so that a resumed run decides as an
    unbroken one, and a compiled step sees it without being traced again.

    Args:
        num_evaluations: int. `n`, at least 1.

    Raises:
        ValueError: If `num_evaluations` is not positive.

    References:
     - [Merity et al., 2018](https://arxiv.org/abs/1708.02182), Algorithm 1
    """

    def __init__(self, num_evaluations: int) -> None:
        if num_evaluations < 1:
            raise ValueError(
                f"`num_evaluations` must be positive. Received: num_evaluations={num_evaluations}"
            )
        # Finite, as all that a checkpoint holds.
        largest = np.finfo(np.float32).max
        self.variables = stored_figures(
            ("is_on", 0, "int64"),
            ("num_observed", 0, "int64"),
            # The least of all but the last `n`, and those, each in the place of the one that
            # was `n` evaluations before.
            ("least_nats", largest, "float32"),
            ("recent_nats", np.full(num_evaluations, largest, np.float32), "float32"),
        )

    @property
    def is_on(self) -> keras.Variable:
        """1 from the evaluation on that was no gain, an int64 scalar; 0 before."""
        return self.variables["is_on"]

    def observe(self, nats_per_token: float) -> bool:
        """Takes in an evaluation; on the host, between loops.

        Workers that train together must all call it with the same value.

        Args:
            nats_per_token: float. The validation loss. What is not finite
                counts as the largest number.

        Returns:
            Whether weights are averaged from now on.
        """
        # Rounded as it is stored, so that a resumed run compares the same numbers.
        largest = np.finfo(np.float32).max
        nats = np.nan_to_num(np.float32(nats_per_token), nan=largest, posinf=largest)
        recent, least = (self.variables[name] for name in ("recent_nats", "least_nats"))
        num_observed, losses = int(self.variables["num_observed"].numpy()), recent.numpy()
        if num_observed > len(losses) and nats > least.numpy():
            self.is_on.assign(1)
        place = num_observed % len(losses)
        least.assign(min(least.numpy(), losses[place]))
        losses[place] = nats
        recent.assign(losses)
        self.variables["num_observed"].assign(num_observed + 1)
        return bool(self.is_on.numpy())


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
        first_step: int, or a `NonMonotoneTrigger`. The first step of which the
            weights count, the steps of a run being counted from 1; or what
            says from when on they do.
        decay: optional float. What the average keeps of itself in a step;
            None: all steps count the same.

    Raises:
        ValueError: If the decay is not between 0 and 1.

    References:
     - [Merity et al., 2018](https://arxiv.org/abs/1708.02182), Section 3
     - [Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980), Section 7.2
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        first_step: int | NonMonotoneTrigger,
        decay: float | None = None,
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
        if isinstance(self._first_step, NonMonotoneTrigger):
            is_counted = self._first_step.is_on.value > 0
        else:
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
