"""Losses and gradients of a replica's rows, all at once or part by part."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from txl_tf.models.memory import Memory
from txl_tf.training.training_objective import TrainingObjective
from txl_tf.training.training_rows import Rows


class RowGradients:
    """Computes losses and gradients, reading the rows in one or several parts.

    Parts are read one after the other and their gradients are added up, so
    that only the activations of one part are held. Nothing in the objective
    goes across rows, so the sum is that of reading them all at once.

    Args:
        objective: `TrainingObjective`.
        variables: the variables to differentiate by.
        num_parts: int. Parts that the rows are read in.
    """

    def __init__(
        self,
        objective: TrainingObjective,
        variables: Sequence[keras.Variable],
        num_parts: int = 1,
    ) -> None:
        self._objective = objective
        self._variables = list(variables)
        self._num_parts = num_parts

    def __call__(self, rows: Rows, step: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], Memory]:
        """Reads the rows.

        Args:
            rows: `Rows`.
            step: int tensor. Steps done before this one.

        Returns:
            Tuple of the loss of each row, float32 `(B,)`, the gradients of all
            rows together, and the next `Memory`.
        """
        if self._num_parts == 1:
            return self._read(rows, step)
        return self._read_parts(rows, step)

    def _read(self, rows: Rows, step: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], Memory]:
        with tf.GradientTape() as tape:
            objective, row_losses, memory = self._objective(rows, step)
        gradients = tape.gradient(objective, [variable.value for variable in self._variables])
        return row_losses, [tf.convert_to_tensor(gradient) for gradient in gradients], memory

    def _read_parts(self, rows: Rows, step: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], Memory]:
        parts = tf.nest.map_structure(self._split, rows)
        gradients = [tf.zeros(variable.shape, variable.dtype) for variable in self._variables]
        results = [
            tf.TensorArray(tensor.dtype, self._num_parts, element_shape=tensor.shape[1:])
            for tensor in tf.nest.flatten((parts.weights, parts.memory))
        ]

        def read_part(
            index: tf.Tensor, gradients: list[tf.Tensor], results: list[tf.TensorArray]
        ) -> tuple:
            part = tf.nest.map_structure(lambda tensor: tensor[index], parts)
            row_losses, more, memory = self._read(part, step)
            gradients = [total + new for total, new in zip(gradients, more, strict=True)]
            values = tf.nest.flatten((row_losses, memory))
            results = [
                array.write(index, value) for array, value in zip(results, values, strict=True)
            ]
            return index + 1, gradients, results

        _, gradients, results = tf.while_loop(
            lambda index, *_: index < self._num_parts,
            read_part,
            (tf.constant(0), gradients, results),
            maximum_iterations=self._num_parts,
            # Several at once would hold the activations of several.
            parallel_iterations=1,
        )
        whole = [tf.concat(tf.unstack(array.stack(), self._num_parts), 0) for array in results]
        row_losses, memory = tf.nest.pack_sequence_as((rows.weights, rows.memory), whole)
        return row_losses, gradients, memory

    def _split(self, tensor: tf.Tensor) -> tf.Tensor:
        num_rows = tensor.shape[0]
        return tf.reshape(tensor, [self._num_parts, num_rows // self._num_parts, *tensor.shape[1:]])
