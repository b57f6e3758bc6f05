"""Training loss of a task.

Shape letters: B rows, L positions of a text, N positions of a checksum.
"""

from typing import Any

import keras
from keras import ops

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.step_context import current_value
from txl_tf.models.headed import create_headed_model, padded_inputs
from txl_tf.models.language_model import LanguageModel
from txl_tf.training.objectives.objective import Batch, Objective


class TaskObjective(Objective):
    """Mean loss of an example over a batch, without memory.

    The inputs are those of `ExampleReader`: `token_ids`, int32 `(B, L)`, and `num_tokens`, the
    lengths of the texts, int32 `(B,)`, and `targets`. Classification uses the cross-entropy, with
    int32 targets `(B,)`. `class_weights` multiply the loss of a class, as in Keras. Regression uses
    the squared error, with float32 targets `(B,)`.
    """

    def __init__(self, model: LanguageModel, config: ExperimentConfig) -> None:
        super().__init__(model, config)
        self._task = config.task
        self.headed_model = create_headed_model(model, config.task)

    @property
    def head_variables(self) -> list[keras.Variable]:
        return self.headed_model.head.weights

    def initial_memory(self) -> tuple[()]:
        # Each example is read from its beginning.
        return ()

    def checked_ids(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the examples as ids `(B, N)`, and zeros in the place of target ids."""
        targets = ops.view(inputs["targets"], "int32")  # float32 for a regression
        parts = (inputs["token_ids"], inputs["num_tokens"][:, None], targets[:, None])
        ids = ops.concatenate(parts, axis=1)
        return ids, ops.zeros_like(ids)

    def __call__(self, batch: Batch) -> tuple[Any, Any, tuple[()]]:
        texts = padded_inputs(batch.inputs["token_ids"], batch.inputs["num_tokens"])
        # The weights are read here, outside the loop over segments: the gradient of a loop needs
        # the shapes of the variables that it reads, which fails on a TPU.
        values = [(weight, current_value(weight)) for weight in self.weights]
        with keras.StatelessScope(values):
            outputs = self.headed_model.call(texts, dropout_seed=batch.dropout_seeds, training=True)
        losses = self._losses(outputs, batch.inputs["targets"])  # [B]
        row_losses = losses * batch.weights / self._global_batch_size
        return ops.sum(row_losses), row_losses, batch.memory

    def _losses(self, outputs: Any, targets: Any) -> Any:
        if self._task.kind == "regression":
            return ops.square(outputs[:, 0] - targets)
        losses = ops.sparse_categorical_crossentropy(targets, outputs, from_logits=True)
        if self._task.class_weights is not None:
            class_weights = ops.convert_to_tensor(self._task.class_weights, "float32")
            losses *= ops.take(class_weights, targets)
        return losses
