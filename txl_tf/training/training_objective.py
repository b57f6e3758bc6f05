"""What a training step makes small."""

import tensorflow as tf

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.auxiliary_losses import AuxiliaryLosses
from txl_tf.training.training_rows import Rows


class TrainingObjective:
    """The loss of the next token, and whatever else the run trains on.

    The loss is the mean over the positions that `loss_positions` counts. Those
    that it does not count, at the beginning of a segment, pass their hidden
    states on but predict nothing.

    Args:
        model: `TransformerXL`.
        config: `ExperimentConfig` of the run.
    """

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
        """The trainable variables that are not the model's."""
        return [] if self._auxiliary_losses is None else self._auxiliary_losses.variables

    def __call__(self, rows: Rows, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, Memory]:
        """Computes the share of some rows; those of all rows add up.

        Args:
            rows: `Rows`.
            step: int tensor. Steps done before this one.

        Returns:
            Tuple of the objective, the loss of the next token alone for each
            row, float32 `(B,)`, and the next `Memory`.
        """
        hidden_states, memory = self._hidden_states(rows)
        target_ids = rows.target_ids
        first = self._first_position
        if first > 0:
            hidden_states = [hidden[:, first:] for hidden in hidden_states]
            target_ids = target_ids[:, first:]
        nll = self._model.negative_log_likelihood(hidden_states[-1], target_ids)
        num_tokens = self._global_batch_size * target_ids.shape[1]
        row_losses = tf.reduce_sum(nll, axis=1) * rows.weights / num_tokens
        objective = tf.reduce_sum(row_losses)
        if self._auxiliary_losses is not None:
            objective += self._auxiliary_losses(hidden_states, target_ids, rows.weights, step)
        return objective, row_losses, memory

    def _hidden_states(self, rows: Rows) -> tuple[list[tf.Tensor], Memory]:
        options = {"dropout_seed": rows.dropout_seeds, "training": True}
        if self._masks_documents:
            options["document_starts"] = rows.document_starts
        if self._auxiliary_losses is not None and self._auxiliary_losses.needs_all_layers:
            return self._model.hidden_states(rows.token_ids, rows.memory, **options)
        hidden, memory = self._model(rows.token_ids, rows.memory, **options)
        return [hidden], memory
