"""Training loss of a batch, its auxiliary losses, and its gradients.

Shape letters used in this module: B rows, T positions that are trained on, D hidden width, L
layers, T segment length.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import keras
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.layers.adaptive_softmax import AdaptiveSoftmax
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL

_SECOND_TARGET_WEIGHT = 0.5


class AuxiliaryLosses:
    """Intermediate layer losses and multiple targets of Al-Rfou et al. (2019), Section 2.1.

    Intermediate layer losses: every block predicts the next token, not only the last. Block `l` of
    `L` does so until `l / (2 L)` of the run is over, so the second half of the run has no such
    loss. Multiple targets: every position that predicts the next token also predicts the one after
    it, with its own softmax and half the weight. The last position of a segment does not, because
    that token is not in its batch. Each loss is the mean over its positions, and all are summed.
    The model's softmax scores the next token for all blocks, and one more softmax the second
    target; in the paper every block has its own classifiers.
    """

    def __init__(self, model: TransformerXL, config: ExperimentConfig) -> None:
        self._model = model
        self._global_batch_size = config.training.global_batch_size
        self._end_steps = _end_steps(config)
        self.second_softmax: AdaptiveSoftmax | None = None
        if config.training.num_targets == 2:
            self.second_softmax = _own_softmax(model)

    @property
    def variables(self) -> list:
        """Trainable variables outside the model."""
        return [] if self.second_softmax is None else self.second_softmax.trainable_variables

    @property
    def needs_all_layers(self) -> bool:
        """True if the hidden states of all layers are needed, not only the last."""
        return bool(self._end_steps)

    def __call__(
        self,
        hidden_states: list[tf.Tensor],
        target_ids: tf.Tensor,
        row_weights: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Tensor:
        """Computes this replica's share of the sum of all auxiliary losses, a float32 scalar.

        `hidden_states` are `(B, T, D)` of the embeddings and all blocks, or without
        `needs_all_layers` only of the last block. `target_ids` are int32 `(B, T)`; `row_weights`
        are float32 `(B,)`, 0 for padding rows. `step` counts the steps before this one.
        """
        total = self._second_target_loss(hidden_states[-1], target_ids, row_weights)
        for hidden, end in zip(hidden_states[1:-1], self._end_steps, strict=True):
            nll = self._model.negative_log_likelihood(hidden, target_ids)
            loss = self._mean(nll, row_weights)
            loss += self._second_target_loss(hidden, target_ids, row_weights)
            total += loss * tf.cast(step < end, loss.dtype)
        return total

    def _second_target_loss(
        self, hidden: tf.Tensor, target_ids: tf.Tensor, row_weights: tf.Tensor
    ) -> tf.Tensor:
        if self.second_softmax is None:
            return tf.zeros([])
        # The target of the next position is the second target of this one.
        nll = self.second_softmax.negative_log_likelihood(
            hidden[:, :-1], target_ids[:, 1:], projections=self._model.embedding.projections
        )
        return _SECOND_TARGET_WEIGHT * self._mean(nll, row_weights)

    def _mean(self, nll: tf.Tensor, row_weights: tf.Tensor) -> tf.Tensor:
        num_tokens = self._global_batch_size * nll.shape[1]
        return tf.reduce_sum(tf.reduce_sum(nll, axis=1) * row_weights) / num_tokens


def _end_steps(config: ExperimentConfig) -> list[int]:
    """Returns the step at which each block but the last stops predicting."""
    if not config.training.intermediate_losses:
        return []
    num_layers = config.model.num_layers
    # Rounded up: the loss stops at the first step after its share of the run.
    return [
        -(-config.training.num_steps * layer // (2 * num_layers)) for layer in range(1, num_layers)
    ]


def _own_softmax(model: TransformerXL) -> AdaptiveSoftmax:
    """Creates a softmax like the model's, but with its own tables."""
    settings = {
        **model.softmax.get_config(),
        "name": "second_target_softmax",
        "tie_weights": False,
        "share_tail_projections": False,
    }
    softmax = AdaptiveSoftmax.from_config(settings)
    # Built now, because the optimizer is built with these variables before the first call.
    softmax.build((None, None, model.config.hidden_dim))
    return softmax


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
    """Training loss of a batch: next-token loss plus the auxiliary losses of the run.

    The loss is the mean over the positions that `loss_positions` counts. The others, at the
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
        self._auxiliary_losses: AuxiliaryLosses | None = None
        if training.intermediate_losses or training.num_targets > 1:
            self._auxiliary_losses = AuxiliaryLosses(model, config)

    @property
    def auxiliary_variables(self) -> list:
        """Trainable variables of the auxiliary losses."""
        return [] if self._auxiliary_losses is None else self._auxiliary_losses.variables

    @property
    def head_variables(self) -> list:
        """Empty: the language model has no head."""
        return []

    def initial_memory(self) -> Memory:
        """Returns the memory of a row before the first step."""
        return self._model.initial_memory(1)

    def __call__(self, batch: Batch, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Memory]:
        """Computes the share of some rows; the shares of all rows add up.

        Returns the objective, the next-token loss of each row, float32 `(B,)`, and the next
        memory. `step` counts the steps before this one.
        """
        hidden_states, memory = self._hidden_states(batch)
        target_ids = batch.target_ids
        first = self._first_position
        if first > 0:
            hidden_states = [hidden[:, first:] for hidden in hidden_states]
            target_ids = target_ids[:, first:]
        nll = self._model.negative_log_likelihood(hidden_states[-1], target_ids)
        # Tokens of all replicas, so that their shares add up to the mean for any split of the rows.
        num_tokens = self._global_batch_size * target_ids.shape[1]
        row_losses = tf.reduce_sum(nll, axis=1) * batch.weights / num_tokens
        objective = tf.reduce_sum(row_losses)
        if self._auxiliary_losses is not None:
            objective += self._auxiliary_losses(hidden_states, target_ids, batch.weights, step)
        return objective, row_losses, memory

    def _hidden_states(self, batch: Batch) -> tuple[list[tf.Tensor], Memory]:
        options = {"dropout_seed": batch.dropout_seeds, "training": True}
        if self._masks_documents:
            options["document_starts"] = batch.document_starts
        if self._auxiliary_losses is not None and self._auxiliary_losses.needs_all_layers:
            return self._model.hidden_states(batch.token_ids, batch.memory, **options)
        hidden, memory = self._model(batch.token_ids, batch.memory, **options)
        return [hidden], memory


def row_gradients(
    objective: Any,
    variables: Sequence[keras.Variable],
    batch: Any,
    step: tf.Tensor,
    num_parts: int = 1,
) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
    """Computes the row losses, float32 `(B,)`, the summed gradients, and the next memory.

    Rows are read in `num_parts` parts, one after the other, and their gradients are summed, so that
    only the activations of one part are held. The objective has no term across rows, so the sum
    equals a single pass. `step` counts the steps before this one.
    """

    def read(rows: Any) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
        with tf.GradientTape() as tape:
            loss, row_losses, memory = objective(rows, step)
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
