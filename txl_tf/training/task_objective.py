"""Training loss of a task: independent texts under a head, each read whole.

Shape letters used in this module: B rows, C texts of a row, L positions of a text.
"""

from typing import NamedTuple, Self

import keras
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.models.headed import create_headed_model, padded_inputs
from txl_tf.models.language_model import LanguageModel

# Odd and different from the steps of positions and segments, so that no two texts of a row share a
# seed.
_CHOICE_STEP = 0x1B873593


class NoMemory(NamedTuple):
    """Memory of rows whose texts are unrelated to the step before."""

    def to_tensors(self) -> dict[str, tf.Tensor]:
        """Returns an empty dict."""
        return {}


class TaskBatch(NamedTuple):
    """Examples of a replica; every tensor has its rows as the first axis.

    `token_ids` are int32 `(B, L)`, or `(B, C, L)` of a choice. `num_tokens` are int32 `(B,)` or
    `(B, C)`, 0 for an absent text of a choice. `targets` are `(B, ...)`, see `TaskObjective`.
    `dropout_seeds` are int32 `(B, 2)`; `weights` are float32 `(B,)`, 0 for padding rows.
    """

    token_ids: tf.Tensor
    num_tokens: tf.Tensor
    targets: tf.Tensor
    memory: NoMemory
    dropout_seeds: tf.Tensor
    weights: tf.Tensor

    @classmethod
    def of(
        cls,
        inputs: dict[str, tf.Tensor],
        memory: dict[str, tf.Tensor],
        dropout_seeds: tf.Tensor,
        weights: tf.Tensor,
    ) -> Self:
        """Creates the batch of a step from its inputs; `memory` is empty."""
        names = ("token_ids", "num_tokens", "targets")
        return cls(
            **{name: inputs[name] for name in names},
            memory=NoMemory(),
            dropout_seeds=dropout_seeds,
            weights=weights,
        )

    @staticmethod
    def checked_ids(inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the two int32 tensors `(B, N)` that the checksum of a step covers."""
        parts = [inputs["token_ids"], inputs["num_tokens"], inputs["targets"]]
        if parts[-1].dtype != tf.int32:
            parts[-1] = tf.bitcast(parts[-1], tf.int32)
        flat = [tf.reshape(each, [each.shape[0], -1]) for each in parts]
        ids = tf.concat(flat, axis=1)
        return ids, tf.zeros_like(ids)


class TaskObjective:
    """Training loss of a task: the mean over the examples of a batch.

    It is the cross-entropy of the class of a text, of the right text of a choice, of the labels of
    a text's words (their mean in each text, so that every text counts the same) and of the first
    and last token of a span (their sum), and the squared error of a number. `class_weights`
    multiply the loss of a class, as in Keras. Targets are int32 `(B,)`, the class or choice;
    float32 `(B,)`, the number; int32 `(B, L)`, the label of each token, -1 for no label; or int32
    `(B, 2)`, the first and last token of the span.
    """

    batch_type = TaskBatch

    def __init__(self, model: LanguageModel, config: ExperimentConfig) -> None:
        self._task = config.task
        self._global_batch_size = config.training.global_batch_size
        self.headed_model = create_headed_model(model, config.task)

    @property
    def head_variables(self) -> list[keras.Variable]:
        """Weights of the head."""
        return self.headed_model.head.weights

    @property
    def auxiliary_variables(self) -> list[keras.Variable]:
        """Empty: the head is not an auxiliary loss."""
        return []

    def initial_memory(self) -> NoMemory:
        """Returns the memory of a row before the first step."""
        return NoMemory()

    def __call__(self, batch: TaskBatch, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, NoMemory]:
        """Computes the share of some rows; the shares of all rows add up.

        Returns the objective, the loss of each row, float32 `(B,)`, and `NoMemory`.
        """
        inputs = padded_inputs(batch.token_ids, batch.num_tokens)
        seeds = _seeds_of_texts(batch.dropout_seeds, batch.num_tokens)
        weights = self.headed_model.language_model.weights
        # Read here, because the gradient of a loop asks variables for their shape, which fails on a
        # TPU.
        values = [tf.convert_to_tensor(weight.value) for weight in weights]
        with keras.StatelessScope(list(zip(weights, values, strict=True))):
            outputs = self.headed_model.call(inputs, dropout_seed=seeds, training=True)
        losses = self._losses(outputs, batch)  # [B]
        row_losses = losses * batch.weights / self._global_batch_size
        return tf.reduce_sum(row_losses), row_losses, batch.memory

    def _losses(self, outputs: tf.Tensor, batch: TaskBatch) -> tf.Tensor:
        match self._task.kind:
            case "regression":
                return tf.square(outputs[:, 0] - batch.targets)
            case "choice":
                return _cross_entropy(outputs, batch.targets)
            case "tokens":
                is_labelled = batch.targets >= 0  # [B, L]
                losses = self._weighted(outputs, tf.maximum(batch.targets, 0))
                losses = tf.where(is_labelled, losses, 0.0)
                count = tf.reduce_sum(tf.cast(is_labelled, tf.float32), axis=1)
                return tf.reduce_sum(losses, axis=1) / tf.maximum(count, 1.0)
            case "span":
                return tf.reduce_sum(_cross_entropy(outputs, batch.targets), axis=1)
            case _:
                return self._weighted(outputs, batch.targets)

    def _weighted(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        losses = _cross_entropy(logits, targets)
        if self._task.class_weights is None:
            return losses
        return losses * tf.gather(tf.constant(self._task.class_weights), targets)


def _seeds_of_texts(seeds: tf.Tensor, num_tokens: tf.Tensor) -> tf.Tensor:
    """Derives a seed for each text of a row: `(B, 2)` unchanged, or `(B, C, 2)` of a choice."""
    if num_tokens.shape.rank == 1:
        return seeds
    steps = tf.range(num_tokens.shape[1]) * _CHOICE_STEP
    first = seeds[:, :1] + steps  # [B, C]
    return tf.stack([first, tf.broadcast_to(seeds[:, 1:], tf.shape(first))], axis=2)


def _cross_entropy(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
