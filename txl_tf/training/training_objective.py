"""What a training step makes small."""

import tensorflow as tf

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.auxiliary_losses import AuxiliaryLosses


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
        self._auxiliary_losses: AuxiliaryLosses | None = None
        if training.intermediate_losses or training.num_targets > 1:
            self._auxiliary_losses = AuxiliaryLosses(model, config)

    @property
    def auxiliary_variables(self) -> list:
        """The trainable variables that are not the model's."""
        return [] if self._auxiliary_losses is None else self._auxiliary_losses.variables

    def __call__(
        self,
        batch: dict[str, tf.Tensor],
        memory: Memory,
        dropout_seed: tf.Tensor,
        step: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, Memory]:
        """Computes this replica's share; those of all replicas add up.

        Args:
            batch: dict of int32 `token_ids` and `target_ids` `(B, T)`.
            memory: `Memory` of the segments before.
            dropout_seed: int32 tensor `(2,)`.
            step: int tensor. Steps done before this one.

        Returns:
            Tuple of the objective, the loss of the next token alone, and the
            next `Memory`.
        """
        hidden_states, memory = self._hidden_states(batch["token_ids"], memory, dropout_seed)
        target_ids = batch["target_ids"]
        first = self._first_position
        if first > 0:
            hidden_states = [hidden[:, first:] for hidden in hidden_states]
            target_ids = target_ids[:, first:]
        nll = self._model.negative_log_likelihood(hidden_states[-1], target_ids)
        loss = tf.reduce_sum(nll) / (self._global_batch_size * target_ids.shape[1])
        if self._auxiliary_losses is None:
            return loss, loss, memory
        return loss + self._auxiliary_losses(hidden_states, target_ids, step), loss, memory

    def _hidden_states(
        self, token_ids: tf.Tensor, memory: Memory, dropout_seed: tf.Tensor
    ) -> tuple[list[tf.Tensor], Memory]:
        options = {"dropout_seed": dropout_seed, "training": True}
        if self._auxiliary_losses is not None and self._auxiliary_losses.needs_all_layers:
            return self._model.hidden_states(token_ids, memory, **options)
        hidden, memory = self._model(token_ids, memory, **options)
        return [hidden], memory
