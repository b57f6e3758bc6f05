"""Training loss of a batch, and its gradients.

Shape letters used in this module: B rows, T segment length.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


class Batch(NamedTuple):
    """Rows of a replica; every tensor has them as its first axis.

    `token_ids` and `target_ids` are int32 `(B, T)`. `document_starts` is bool `(B, T)`, true for
    the first token of each document, and all false if documents are not separated. `memory` is of
    the segments before. `dropout_seeds` are int32 `(B, 2)`; `weights` are float32 `(B,)`, 0 for
    padding rows.
    """

    token_ids: tf.Tensor
    target_ids: tf.Tensor
    document_starts: tf.Tensor
    memory: Memory
    dropout_seeds: tf.Tensor
    weights: tf.Tensor

    @classmethod
    def of(
        cls,
        inputs: dict[str, tf.Tensor],
        memory: Memory,
        dropout_seeds: tf.Tensor,
        weights: tf.Tensor,
    ) -> Self:
        """Creates the batch of a step from its inputs by name, and the memory before it."""
        starts = inputs.get("document_starts")
        if starts is None:
            # Not `None`, which cannot be split into parts like the other tensors.
            starts = tf.zeros(inputs["token_ids"].shape, tf.bool)
        return cls(
            token_ids=inputs["token_ids"],
            target_ids=inputs["target_ids"],
            document_starts=starts,
            memory=memory.forget(inputs["start_of_stream"]),
            dropout_seeds=dropout_seeds,
            weights=weights,
        )

    @staticmethod
    def checked_ids(inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the two int32 tensors `(B, T)` that the checksum of a step covers."""
        return inputs["token_ids"], inputs["target_ids"]


class TrainingObjective:
    """Training loss of a batch of text.

    It is the mean over the positions that `loss_positions` counts. The others, at the
    beginning of a segment, pass their hidden states on but predict nothing.
    """

    batch_type = Batch

    def __init__(self, model: TransformerXL, config: ExperimentConfig) -> None:
        self._model = model
        training = config.training
        self._global_batch_size = training.global_batch_size
        length = config.model.segment_length
        self._first_position = length // 2 if training.loss_positions == "last_half" else 0
        self._masks_documents = training.document_boundaries == "mask"

    @property
    def head_variables(self) -> list:
        """Empty: the language model has no head."""
        return []

    def initial_memory(self) -> Memory:
        """Returns the memory of a row before the first step."""
        return self._model.initial_memory(1)

    def __call__(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, Memory]:
        """Computes the share of some rows; the shares of all rows add up.

        Returns the objective, the loss of each row, float32 `(B,)`, and the next memory.
        """
        options = {"dropout_seed": batch.dropout_seeds, "training": True}
        if self._masks_documents:
            options["document_starts"] = batch.document_starts
        hidden, memory = self._model(batch.token_ids, batch.memory, **options)
        target_ids, first = batch.target_ids, self._first_position
        if first > 0:
            hidden, target_ids = hidden[:, first:], target_ids[:, first:]
        nll = self._model.negative_log_likelihood(hidden, target_ids)
        # Tokens of all replicas, so that their shares add up to the mean for any split of the rows.
        num_tokens = self._global_batch_size * target_ids.shape[1]
        row_losses = tf.reduce_sum(nll, axis=1) * batch.weights / num_tokens
        return tf.reduce_sum(row_losses), row_losses, memory


def row_gradients(
    objective: Any,
    variables: Sequence[keras.Variable],
    batch: Any,
    num_parts: int = 1,
) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
    """Computes the row losses, float32 `(B,)`, the summed gradients, and the next memory.

    Rows are read in `num_parts` parts, one after the other, and their gradients are summed, so that
    only the activations of one part are held. The objective has no term across rows, so the sum
    equals a single pass.
    """

    def read(rows: Any) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
        with tf.GradientTape() as tape:
            loss, row_losses, memory = objective(rows)
        # The tape knows TensorFlow's variables, not their Keras wrappers. Gradients of gathered
        # tables are sparse; dense ones can be summed and reduced with the others.
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        return row_losses, [tf.convert_to_tensor(gradient) for gradient in gradients], memory

    def split(tensor: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tensor, [num_parts, tensor.shape[0] // num_parts, *tensor.shape[1:]])

    if num_parts == 1:
        return read(batch)
    parts = tf.nest.map_structure(split, batch)
    gradients = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    results = [
        tf.TensorArray(tensor.dtype, num_parts, element_shape=tensor.shape[1:])
        for tensor in tf.nest.flatten((parts.weights, parts.memory))
    ]

    def read_part(
        index: tf.Tensor, gradients: list[tf.Tensor], results: list[tf.TensorArray]
    ) -> tuple:
        row_losses, more, memory = read(tf.nest.map_structure(lambda each: each[index], parts))
        gradients = [total + new for total, new in zip(gradients, more, strict=True)]
        values = tf.nest.flatten((row_losses, memory))
        results = [array.write(index, value) for array, value in zip(results, values, strict=True)]
        return index + 1, gradients, results

    _, gradients, results = tf.while_loop(
        lambda index, *_: index < num_parts,
        read_part,
        (tf.constant(0), gradients, results),
        maximum_iterations=num_parts,
        # Parallel parts would hold the activations of several parts.
        parallel_iterations=1,
    )
    # Parts are consecutive rows, so concatenating them restores the batch.
    whole = [tf.concat(tf.unstack(array.stack(), num_parts), 0) for array in results]
    row_losses, memory = tf.nest.pack_sequence_as((batch.weights, batch.memory), whole)
    return row_losses, gradients, memory
