"""Average of the weights of a run, and the trigger that begins it."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from txl_tf.training.schedules import stored_figures


class NonMonotoneTrigger:
    """Trigger that begins the average of the weights, based on evaluations (NT-ASGD).

    It fires if a loss is above the least of all losses but the last `n` (`num_evaluations`): these
    `n` evaluations and this one gained nothing, so more training only moves about an optimum. It
    stays on. `variables` hold the whole state, so that a resumed run decides as an
    unbroken one, and a compiled step sees it without retracing. See Merity et al. (2018),
    Algorithm 1, https://arxiv.org/abs/1708.02182.
    """

    def __init__(self, num_evaluations: int) -> None:
        if num_evaluations < 1:
            raise ValueError(
                f"`num_evaluations` must be positive. Received: num_evaluations={num_evaluations}"
            )
        # Finite, as all values in a checkpoint.
        largest = np.finfo(np.float32).max
        self.variables = stored_figures(
            ("is_on", 0, "int64"),
            ("num_observed", 0, "int64"),
            # The least loss before the last `n`, and the last `n` losses as a ring.
            ("least_nats", largest, "float32"),
            ("recent_nats", np.full(num_evaluations, largest, np.float32), "float32"),
        )

    @property
    def is_on(self) -> keras.Variable:
        """Int64 scalar, 1 once the trigger has fired, 0 before."""
        return self.variables["is_on"]

    def observe(self, nats_per_token: float) -> bool:
        """Records a validation loss; returns True if the average has begun.

        The host calls it between loops; workers that train together must all pass the same value.
        A loss that is not finite counts as the largest number.
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
    """Average of the weights after each step, from some step on.

    Training continues from the weights, and the trained model uses the average. Before its first
    step it equals the weights. Then it is the mean over the steps, as in averaged stochastic
    gradient descent (Merity et al., 2018, Section 3), or with `decay` an exponential mean, in
    which older steps count less (Kingma and Ba, 2015, Section 7.2, without bias correction,
    because it starts as the weights). Every replica averages its own copy of the equal weights, so
    nothing is sent.

    `variables` hold the averages and the number of averaged steps, which is counted because
    skipped steps have no share; a caller that undoes an update must restore all of them.
    `first_step` is the first step that counts, from 1, or a trigger.
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
        """All state by name: averages by the paths of their weights, and `num_steps`."""
        return {**self.averages, "num_steps": self._num_steps}

    def update(self, step: tf.Tensor) -> None:
        """Includes the weights after a step; inside `strategy.run` only.

        `step` counts the steps done, this one included.
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
