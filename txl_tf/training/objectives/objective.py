"""Interface of the losses that a training step minimizes."""

import abc
from typing import Any, NamedTuple

import keras

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.models.language_model import LanguageModel


class Batch(NamedTuple):
    """Rows of a replica in a step. The first axis of every tensor is rows, B.

    `inputs` are the tensors of the data set by name, which the objective documents. `memory` is the
    memory after the previous step. `dropout_seeds` are int32 `(B, 2)`. `weights` are float32
    `(B,)`: 1 for rows of the global batch, and 0 for padding rows.
    """

    inputs: dict[str, Any]
    memory: Any
    dropout_seeds: Any
    weights: Any


class Objective(abc.ABC):
    """Loss that a training step minimizes.

    The loss of a global batch is a sum of shares, one for each row, and has no term across rows.
    So replicas, and the parts of a replica's rows, compute their shares separately and add them up.
    """

    def __init__(self, model: LanguageModel, config: ExperimentConfig) -> None:
        self._model = model
        self._global_batch_size = config.training.global_batch_size

    @property
    def weights(self) -> list[keras.Variable]:
        """All weights that the loss depends on, trained or not."""
        return [*self._model.weights, *self.head_variables]

    @property
    def head_variables(self) -> list[keras.Variable]:
        """Weights of a head on the language model; empty without a head."""
        return []

    def initial_memory(self) -> Any:
        """Returns the memory of one row before the first step, a structure of tensors."""
        return self._model.initial_memory(1)

    @abc.abstractmethod
    def checked_ids(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the two int32 tensors of equal shape that the checksum of a step covers."""

    @abc.abstractmethod
    def __call__(self, batch: Batch) -> tuple[Any, Any, Any]:
        """Computes the shares of the rows of a batch.

        Returns the sum of the shares, the share of each row, float32 `(B,)`, and the memory after
        the batch.
        """
