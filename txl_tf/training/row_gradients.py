"""Losses of rows and their summed gradients, on TensorFlow and on JAX.

Shape letters: B rows of a replica.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_tf.imports import is_on_jax, jax, tensorflow as tf


def row_gradients(
    objective: Any,
    variables: Sequence[keras.Variable],
    batch: Any,
    num_parts: int = 1,
) -> tuple[Any, list[Any], Any]:
    """Computes the row losses, float32 `(B,)`, the summed gradients, and the next memory.

    Rows are read in `num_parts` parts, so that only the activations of one part are held. The
    objective has no term across rows, so the sum of the parts equals a single pass.
    """
    read = _read_on_jax if is_on_jax() else _read_on_tensorflow
    if num_parts == 1:
        return read(objective, variables, batch)

    def split(tensor: Any) -> Any:
        return ops.reshape(tensor, [num_parts, tensor.shape[0] // num_parts, *tensor.shape[1:]])

    def read_part(gradients: list[Any], rows: Any) -> tuple[list[Any], tuple[Any, Any]]:
        row_losses, more, memory = read(objective, variables, rows)
        gradients = [total + new for total, new in zip(gradients, more, strict=True)]
        return gradients, (row_losses, memory)

    zeros = [ops.zeros(variable.shape, variable.dtype) for variable in variables]
    in_turn = _in_turn_on_jax if is_on_jax() else _in_turn_on_tensorflow
    gradients, results = in_turn(read_part, zeros, tf.nest.map_structure(split, batch), num_parts)
    # Parts are consecutive rows, so concatenating them restores the batch.
    return results[0], gradients, results[1]


def _read_on_tensorflow(
    objective: Any, variables: Sequence[keras.Variable], rows: Any
) -> tuple[Any, list[Any], Any]:
    with tf.GradientTape() as tape:
        loss, row_losses, memory = objective(rows)
    # The tape knows TensorFlow's variables, not their Keras wrappers. Gradients of gathered
    # tables are sparse; dense ones can be summed and reduced with the others.
    gradients = tape.gradient(loss, [variable.value for variable in variables])
    return row_losses, [tf.convert_to_tensor(gradient) for gradient in gradients], memory


def _read_on_jax(
    objective: Any, variables: Sequence[keras.Variable], rows: Any
) -> tuple[Any, list[Any], Any]:
    # An inner scope does not see the values of the outer one.
    values = [(variable, variable.value) for variable in objective.weights]

    def loss_of(trained: list[Any]) -> tuple[Any, Any]:
        with keras.StatelessScope([*values, *zip(variables, trained, strict=True)]):
            loss, row_losses, memory = objective(rows)
        return loss, (row_losses, memory)

    trained = [variable.value for variable in variables]
    (_, results), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
    return results[0], gradients, results[1]


def _in_turn_on_tensorflow(read_part: Any, gradients: Any, parts: Any, num_parts: int) -> Any:
    """Reads parts one after the other; returns the sums, and row losses and memory of all rows."""
    batch = (parts.weights, parts.memory)
    results = [
        tf.TensorArray(tensor.dtype, num_parts, element_shape=tensor.shape[1:])
        for tensor in tf.nest.flatten(batch)
    ]

    def turn(index: tf.Tensor, gradients: list[tf.Tensor], results: list[tf.TensorArray]) -> tuple:
        rows = tf.nest.map_structure(lambda each: each[index], parts)
        gradients, found = read_part(gradients, rows)
        pairs = zip(results, tf.nest.flatten(found), strict=True)
        return index + 1, gradients, [array.write(index, value) for array, value in pairs]

    _, gradients, results = tf.while_loop(
        lambda index, *_: index < num_parts,
        turn,
        (tf.constant(0), gradients, results),
        maximum_iterations=num_parts,
        # Parallel parts would hold the activations of several parts.
        parallel_iterations=1,
    )
    whole = [tf.concat(tf.unstack(array.stack(), num_parts), 0) for array in results]
    return gradients, tf.nest.pack_sequence_as(batch, whole)


def _in_turn_on_jax(read_part: Any, gradients: Any, parts: Any, num_parts: int) -> Any:
    gradients, results = jax.lax.scan(read_part, gradients, parts, length=num_parts)
    whole = jax.tree.map(lambda each: ops.reshape(each, [-1, *each.shape[2:]]), results)
    return gradients, whole
