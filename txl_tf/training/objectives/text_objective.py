"""Training loss of a text."""

from typing import Any

from keras import ops

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.objectives.objective import Batch, Objective


class TextObjective(Objective):
    """Mean negative log-likelihood of a token over all positions of a batch of text.

    The inputs are those of `TrainingSegments`: `token_ids` and `target_ids`, int32 `(B, T)` with
    the segment length T, and bool `start_of_stream` `(B,)`, before which a row forgets its memory.
    If documents are separated, `document_starts`, bool `(B, T)`, mark the first token of each.
    """

    def __init__(self, model: TransformerXL, config: ExperimentConfig) -> None:
        super().__init__(model, config)
        self._masks_documents = config.training.document_boundaries == "mask"

    def checked_ids(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
        return inputs["token_ids"], inputs["target_ids"]

    def __call__(self, batch: Batch) -> tuple[Any, Any, Memory]:
        inputs = batch.inputs
        memory = batch.memory.forget(inputs["start_of_stream"])
        options = {"dropout_seed": batch.dropout_seeds, "training": True}
        if self._masks_documents:
            options["document_starts"] = inputs["document_starts"]
        hidden, memory = self._model(inputs["token_ids"], memory, **options)
        nll = self._model.negative_log_likelihood(hidden, inputs["target_ids"])
        # Tokens of all replicas, so that their shares add up to the mean for any split of the rows.
        num_tokens = self._global_batch_size * inputs["target_ids"].shape[1]
        row_losses = ops.sum(nll, axis=1) * batch.weights / num_tokens
        return ops.sum(row_losses), row_losses, memory
