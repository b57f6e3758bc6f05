"""Changes variables in a step, or leaves every one of them as it was."""

from collections.abc import Callable, Sequence

import tensorflow as tf


class GuardedUpdate:
    """Takes an update back unless it is wanted.

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
