"""Losses of rows and their summed gradients, on TensorFlow and on JAX.

Shape letter: B rows of a replica.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from txl_tf.imports import is_on_jax, jax, tensorflow as tf
from txl_tf.training.objectives.objective import Batch, Objective


class RowGradients(NamedTuple):
    """Results of a replica's rows.

    `row_losses`, float32 `(B,)`, are the shares of the objective, and `gradients` are the gradients
    of their sum, one for each variable. `memory` is the memory after the batch.
    """

    row_losses: Any
    gradients: list[Any]
    memory: Any


def row_gradients(
    objective: Objective, variables: Sequence[keras.Variable], batch: Batch, num_parts: int
) -> RowGradients:
    """Computes the losses of the rows of a batch, their gradients and the next memory.

    Rows are read in `num_parts` parts one after the other, so that only the activations of one part
    are in memory. The objective has no term across rows, so the sum over the parts is the result of
    a single pass.
    """
    read_rows = _read_on_jax if is_on_jax() else _read_on_tensorflow
    if num_parts == 1:
        return read_rows(objective, variables, batch)

    def split(tensor: Any) -> Any:
        return ops.reshape(tensor, [num_parts, tensor.shape[0] // num_parts, *tensor.shape[1:]])

    def read_part(sums: list[Any], rows: Batch) -> tuple[list[Any], tuple[Any, Any]]:
        part = read_rows(objective, variables, rows)
        sums = [total + new for total, new in zip(sums, part.gradients, strict=True)]
        return sums, (part.row_losses, part.memory)

    zeros = [ops.zeros(variable.shape, variable.dtype) for variable in variables]
    in_turn = _in_turn_on_jax if is_on_jax() else _in_turn_on_tensorflow
    parts = tf.nest.map_structure(split, batch)
    # Parts are consecutive rows, so concatenating their results restores the order of the batch.
    gradients, (row_losses, memory) = in_turn(read_part, zeros, parts, num_parts)
    return RowGradients(row_losses, gradients, memory)


def _read_on_tensorflow(
    objective: Objective, variables: Sequence[keras.Variable], rows: Batch
) -> RowGradients:
    with tf.GradientTape() as tape:
        loss, row_losses, memory = objective(rows)
    # The tape knows TensorFlow's variables, not their Keras wrappers. Gradients of gathered tables
    # are sparse, and become dense to be summed with the others.
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    dense_gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return RowGradients(row_losses, dense_gradients, memory)


def _read_on_jax(
    objective: Objective, variables: Sequence[keras.Variable], rows: Batch
) -> RowGradients:
    # The inner scope gets the values of all weights, because it does not see the outer scope.
    values = [(variable, variable.value) for variable in objective.weights]

    def loss_of(weights: list[Any]) -> tuple[Any, Any]:
        with keras.StatelessScope([*values, *zip(variables, weights, strict=True)]):
            loss, row_losses, memory = objective(rows)
        return loss, (row_losses, memory)

    weights = [variable.value for variable in variables]
    (_, (row_losses, memory)), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
    return RowGradients(row_losses, gradients, memory)


def _in_turn_on_tensorflow(read_part: Any, gradients: Any, parts: Batch, num_parts: int) -> Any:
    """Reads parts one after the other.

    Returns the sums of the gradients, and a pair: the row losses and the memory of all rows.
    """
    # Row losses have the shape and dtype of the weights of rows, and memory keeps its own.
    structure = (parts.weights, parts.memory)
    results = [
        tf.TensorArray(tensor.dtype, num_parts, element_shape=tensor.shape[1:])
        for tensor in tf.nest.flatten(structure)
    ]

    def turn(index: tf.Tensor, gradients: list[tf.Tensor], results: list[tf.TensorArray]) -> tuple:
        rows = tf.nest.map_structure(lambda each: each[index], parts)
        gradients, values = read_part(gradients, rows)
        pairs = zip(results, tf.nest.flatten(values), strict=True)
        return index + 1, gradients, [array.write(index, value) for array, value in pairs]

    _, gradients, results = tf.while_loop(
        lambda index, *_: index < num_parts,
        turn,
        (tf.constant(0), gradients, results),
        maximum_iterations=num_parts,
        # With parallel iterations, the activations of several parts would be in memory.
        parallel_iterations=1,
    )
    whole = [tf.concat(tf.unstack(array.stack(), num_parts), 0) for array in results]
    return gradients, tf.nest.pack_sequence_as(structure, whole)


def _in_turn_on_jax(read_part: Any, gradients: Any, parts: Batch, num_parts: int) -> Any:
    """Does the same as `_in_turn_on_tensorflow`."""
    gradients, results = jax.lax.scan(read_part, gradients, parts, length=num_parts)
    whole = jax.tree.map(lambda each: ops.reshape(each, [-1, *each.shape[2:]]), results)
    return gradients, whole
