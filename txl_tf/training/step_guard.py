"""Guard of the update: skips steps whose loss or gradients are non-finite or spike."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf


class GuardedUpdate:
    """Update of variables that is undone unless the step is accepted.

    An optimizer can only be called, not be asked what it would do, and a
    condition around it cannot be traced where it sums over replicas. So the
    variables are read before and written again after. Where the step is
    compiled as one program, as on TPUs, this becomes a choice between two
    values in the update itself.

    Args:
        variables: the variables that the update changes.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._variables = list(variables)

    def __call__(self, update: Callable[[], None], is_wanted: tf.Tensor) -> None:
        """Runs the update; inside `strategy.run` only.

        Args:
            update: function that changes the variables.
            is_wanted: bool scalar tensor, the same on all replicas.
        """
        before = [tf.identity(variable) for variable in self._variables]
        # Through one operation: else each of the update's would wait for every variable by itself,
        # and a deep model takes minutes to trace and to lower.
        with tf.control_dependencies([tf.group(*before)]):
            update()
        assign_everywhere(self._variables, before, tf.logical_not(is_wanted))


def assign_everywhere(
    variables: Sequence[tf.Variable], values: Sequence[tf.Tensor], is_wanted: tf.Tensor
) -> None:
    """Assigns values that are the same on all replicas; inside `strategy.run` only.

    Args:
        variables: the variables.
        values: a tensor for each.
        is_wanted: bool scalar tensor. Where it is false, nothing changes.
    """

    def assign_one(variable: tf.Variable, value: tf.Tensor, is_wanted: tf.Tensor) -> None:
        variable.assign(tf.where(is_wanted, value, variable))

    def assign_all(strategy: tf.distribute.Strategy, is_wanted: tf.Tensor, *values) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(variable, assign_one, args=(value, is_wanted), group=False)

    context = tf.distribute.get_replica_context()
    context.merge_call(assign_all, args=(is_wanted, *values))


_DECAY = 0.98
_MIN_STEPS = 100


class SpikeDetector:
    """Running mean and deviation of the loss and of the gradient norm.

    A step is a spike if either is further above its mean than some number of
    standard deviations. Nothing is called a spike before 100 steps have been
    seen. A spike counts as a value at the limit, so that a run whose loss has
    risen for good is not skipped for ever.

    Args:
        deviations: float. Standard deviations above the mean that are still
            ordinary.
    """

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self.variables = {
            name: keras.Variable(
                tf.zeros(shape), dtype="float32", trainable=False, autocast=False, name=name
            )
            for name, shape in (("num_steps", []), ("means", [2]), ("variances", [2]))
        }

    def is_spike(self, loss: tf.Tensor, gradient_norm: tf.Tensor) -> tf.Tensor:
        """Judges a step; inside `strategy.run` only.

        Args:
            loss: float32 scalar tensor.
            gradient_norm: float32 scalar tensor.

        Returns:
            Bool scalar tensor.
        """
        is_above = tf.reduce_any(tf.stack([loss, gradient_norm]) > self._limits())
        return tf.logical_and(is_above, self.variables["num_steps"].value >= _MIN_STEPS)

    def next_values(self, loss: tf.Tensor, gradient_norm: tf.Tensor) -> list[tf.Tensor]:
        """Computes the next values of the variables; inside `strategy.run` only.

        Args:
            loss: float32 scalar tensor.
            gradient_norm: float32 scalar tensor.

        Returns:
            List of a tensor for every variable, in the order of `variables`.
        """
        num_steps, means, variances = (variable.value for variable in self.variables.values())
        values = tf.stack([loss, gradient_norm])
        values = tf.where(num_steps >= _MIN_STEPS, tf.minimum(values, self._limits()), values)
        # At first all steps count the same, so that the zeros they start from have no share.
        share = tf.maximum(1.0 / (num_steps + 1.0), 1.0 - _DECAY)
        distances = values - means
        return [
            num_steps + 1.0,
            means + share * distances,
            (1.0 - share) * (variances + share * distances * distances),
        ]

    def _limits(self) -> tf.Tensor:
        deviations = tf.sqrt(self.variables["variances"].value)
        return self.variables["means"].value + self._deviations * deviations
