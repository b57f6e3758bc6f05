"""Training loss of a task, and the batches that it reads.

Shape letters used in this module: B rows, L positions of a text, N positions of a checksum.
"""

from typing import Any, NamedTuple, Self

import keras
from keras import ops

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.step_context import current_value
from txl_tf.models.headed import create_headed_model, padded_inputs
from txl_tf.models.language_model import LanguageModel


class TaskBatch(NamedTuple):
    """Examples of a replica, without memory. The first axis of every tensor is rows.

    `token_ids` are int32 `(B, L)`, `num_tokens` int32 `(B,)`, and `targets` `(B,)`, see
    `TaskObjective`. `dropout_seeds` are int32 `(B, 2)`; `weights` are float32 `(B,)`, 0 for padding
    rows.
    """

    token_ids: Any
    num_tokens: Any
    targets: Any
    memory: tuple[()]
    dropout_seeds: Any
    weights: Any

    @classmethod
    def of(
        cls,
        inputs: dict[str, Any],
        memory: tuple[()],
        dropout_seeds: Any,
        weights: Any,
    ) -> Self:
        """Creates the batch of a step from its inputs."""
        examples = (inputs[name] for name in ("token_ids", "num_tokens", "targets"))
        return cls(*examples, memory, dropout_seeds, weights)

    @staticmethod
    def checked_ids(inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the two int32 tensors `(B, N)` that the checksum of a step covers."""
        targets = ops.view(inputs["targets"], "int32")  # float32 for a regression
        parts = (inputs["token_ids"], inputs["num_tokens"][:, None], targets[:, None])
        ids = ops.concatenate(parts, axis=1)
        return ids, ops.zeros_like(ids)


class TaskObjective:
    """Training loss of a task: the mean over the examples of a batch.

    Classification uses the cross-entropy, with int32 targets `(B,)`. `class_weights` multiply the
    loss of a class, as in Keras. Regression uses the squared error, with float32 targets `(B,)`.
    """

    batch_type = TaskBatch

    def __init__(self, model: LanguageModel, config: ExperimentConfig) -> None:
        self._task = config.task
        self._global_batch_size = config.training.global_batch_size
        self.headed_model = create_headed_model(model, config.task)

    @property
    def weights(self) -> list[keras.Variable]:
        """All weights that it reads, trained or not."""
        return [*self.headed_model.language_model.weights, *self.head_variables]

    @property
    def head_variables(self) -> list[keras.Variable]:
        """Weights of the head."""
        return self.headed_model.head.weights

    def initial_memory(self) -> tuple[()]:
        """Returns the memory of a row before the first step."""
        return ()

    def __call__(self, batch: TaskBatch) -> tuple[Any, Any, tuple[()]]:
        """Computes the contribution of some rows to the objective.

        Returns the sum over rows, the contribution of each row, float32 `(B,)`, and an empty
        memory. A contribution is the row's loss times its weight, over the global batch size.
        """
        inputs = padded_inputs(batch.token_ids, batch.num_tokens)
        # Read here: the gradient of a loop needs the shapes of variables, which fails on a TPU.
        values = [(weight, current_value(weight)) for weight in self.weights]
        with keras.StatelessScope(values):
            outputs = self.headed_model.call(
                inputs, dropout_seed=batch.dropout_seeds, training=True
            )
        losses = self._losses(outputs, batch)  # [B]
        row_losses = losses * batch.weights / self._global_batch_size
        return ops.sum(row_losses), row_losses, batch.memory

    def _losses(self, outputs: Any, batch: TaskBatch) -> Any:
        if self._task.kind == "regression":
            return ops.square(outputs[:, 0] - batch.targets)
        losses = ops.sparse_categorical_crossentropy(batch.targets, outputs, from_logits=True)
        if self._task.class_weights is not None:
            class_weights = ops.convert_to_tensor(self._task.class_weights, "float32")
            losses *= ops.take(class_weights, batch.targets)
        return losses
