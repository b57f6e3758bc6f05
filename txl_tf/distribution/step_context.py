"""Operations of a training step that concern all replicas, on TensorFlow and on JAX.

On TensorFlow a step runs in `strategy.run`, and the strategy has a copy of each variable on every
replica. On JAX a step is traced as one program over a mesh, see `MeshProgram`, in which variables
have traced arrays as their values.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from txl_tf.imports import is_on_jax, jax, tensorflow as tf

MESH_AXIS = "replicas"
"""Name of the only axis of a mesh."""


def replica_index() -> Any:
    """Returns the number of this replica, int32."""
    if is_on_jax():
        return jax.lax.axis_index(MESH_AXIS)
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def sum_over_replicas(tensors: list[Any]) -> list[Any]:
    """Adds up each tensor over all replicas; one call for all lets the backend pack them."""
    if is_on_jax():
        return jax.lax.psum(tensors, MESH_AXIS)
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def current_value(variable: keras.Variable) -> Any:
    """Returns the value of a variable, which does not change if the step assigns it later."""
    return variable.value if is_on_jax() else tf.identity(variable.value)


def assign_everywhere(
    function: Callable[..., Any],
    variables: Sequence[keras.Variable],
    values: Sequence[Any],
    *shared: Any,
) -> None:
    """Assigns `function(old, value, *shared)` to each variable, on all replicas.

    Values and `shared` are tensors that are equal on all replicas.
    """
    if is_on_jax():
        for variable, value in zip(variables, values, strict=True):
            variable.assign(function(variable.value, value, *shared))
        return

    def assign_one(variable: tf.Variable, value: tf.Tensor, *shared: tf.Tensor) -> None:
        variable.assign(function(variable, value, *shared))

    def assign_all(strategy: tf.distribute.Strategy, values: list, *shared: tf.Tensor) -> None:
        for variable, value in zip(variables, values, strict=True):
            arguments = (value, *shared)
            strategy.extended.update(variable.value, assign_one, args=arguments, group=False)

    tf.distribute.get_replica_context().merge_call(assign_all, args=(list(values), *shared))
