"""Average of the weights over the steps of a run."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_tf.distribution.step_context import assign_everywhere, current_value


class WeightAverage:
    """Average of the weights over the steps from `first_step` on; the trained model uses it.

    Before `first_step`, which counts from 1, the average equals the weights. Then it is the mean
    over the steps, as in averaged stochastic gradient descent (Merity et al., 2018, Section 3), or
    with `decay` an exponential mean (Kingma and Ba, 2015, Section 7.2). The exponential mean starts
    as the weights, so it has no bias correction. Weights are equal on all replicas, and every
    replica averages its own copy, so nothing is sent.

    Skipped steps have no share, so the averaged steps are counted, in a variable. A caller that
    undoes an update must restore all `variables`, also this count.
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        first_step: int,
        decay: float | None = None,
    ) -> None:
        self._weights = list(variables)
        self._first_step = first_step
        self._decay = decay
        self.averages = {
            each.path: _stored_variable(each.path.replace("/", "_"), each.numpy(), each.dtype)
            for each in self._weights
        }
        self._num_steps = _stored_variable("num_steps", 0, "int")

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """All state: averages by the paths of their weights, and `num_steps` by this name."""
        return {**self.averages, "num_steps": self._num_steps}

    def update(self, step: Any) -> None:
        """Includes the present weights, after `step` steps; inside a step only."""
        count = current_value(self._num_steps)
        count += ops.cast(step >= self._first_step, count.dtype)
        weights = [current_value(weight) for weight in self._weights]
        assign_everywhere(self._next_average, list(self.averages.values()), weights, count)
        assign_everywhere(lambda old, new: new, [self._num_steps], [count])

    def _next_average(self, average: Any, weight: Any, count: Any) -> Any:
        # The share of the new weight. `count` includes the present step, and is 0 before the first.
        share = 1.0 / ops.cast(ops.maximum(count, 1), weight.dtype)
        if self._decay is not None:
            share = ops.cast(1.0 - self._decay, weight.dtype)
        return ops.where(count > 1, average + (weight - average) * share, weight)


def _stored_variable(name: str, value: Any, dtype: str) -> keras.Variable:
    """Creates a variable that no gradient changes and a checkpoint keeps."""
    return keras.Variable(value, dtype=dtype, trainable=False, autocast=False, name=name)
