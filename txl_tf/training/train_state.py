"""Variables of a run: weights, optimizer state, weight average, evaluation history."""

import math

import keras
import numpy as np

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.models.language_model import create_model
from txl_tf.training.objective import TrainingObjective
from txl_tf.training.optimizers import create_optimizer, create_plateau_scale
from txl_tf.training.schedules import PlateauScale
from txl_tf.training.step_guard import SpikeDetector
from txl_tf.training.step_records import StepRecords
from txl_tf.training.train_step import AllReduce, RowGradients, TrainStep
from txl_tf.training.weight_average import WeightAverage


class EvaluationHistory:
    """The last evaluation and the best one.

    It decides what the run does next, so it belongs into a checkpoint.

    Args:
        plateau_scale: optional `PlateauScale`, which is told every loss. It
            keeps its own state.
    """

    def __init__(self, plateau_scale: PlateauScale | None = None) -> None:
        self._plateau_scale = plateau_scale
        self.last_step = -1
        """Steps done at the last evaluation; -1 before the first."""
        self.best_step = -1
        """Steps done at the best evaluation; -1 before the first."""
        self.best_nats_per_token = math.inf
        """Loss of the best evaluation."""

    def observe(self, step: int, nats_per_token: float) -> bool:
        """Takes in an evaluation.

        Args:
            step: int. Steps done.
            nats_per_token: float. Loss on the validation split.

        Returns:
            Whether it is the best so far.
        """
        self.last_step = step
        if self._plateau_scale is not None:
            self._plateau_scale.observe(nats_per_token)
        if not nats_per_token < self.best_nats_per_token:
            return False
        self.best_step, self.best_nats_per_token = step, nats_per_token
        return True

    def state(self) -> dict[str, np.ndarray]:
        """Returns the history as arrays, by name."""
        return {
            "evaluation/last_step": np.asarray(self.last_step, np.int64),
            "evaluation/best_step": np.asarray(self.best_step, np.int64),
            # Finite, as all that a checkpoint holds.
            "evaluation/best_nats_per_token": np.asarray(
                min(self.best_nats_per_token, np.finfo(np.float64).max), np.float64
            ),
        }

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes up what `state` returned.

        Args:
            arrays: dict of name to array.

        Raises:
            ValueError: If names are missing or too many.
        """
        names = self.state().keys()
        if arrays.keys() != names:
            differing = sorted(names ^ arrays.keys())
            raise ValueError(f"`arrays` must have the names of `state`. Received: {differing}")
        self.last_step = int(arrays["evaluation/last_step"])
        self.best_step = int(arrays["evaluation/best_step"])
        self.best_nats_per_token = float(arrays["evaluation/best_nats_per_token"])


class TrainingVariables:
    """Variables of a run: model, optimizer, weight average and plateau scale.

    To be created under the scope of the strategy that trains. Initial weights
    are drawn from Keras' global seed.

    Args:
        config: `ExperimentConfig`.

    Attributes:
        model: the language model, from `create_model`.
        objective: `TrainingObjective` of the model.
        optimizer: Keras optimizer, built.
        plateau_scale: `PlateauScale` if the schedule is "plateau", else None.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = config
        training = config.training
        self.model = create_model(
            config.model, rematerialize=training.rematerialize, dtype=training.dtype_policy
        )
        self.objective = TrainingObjective(self.model, config)
        self.plateau_scale = create_plateau_scale(config.optimizer)
        self.optimizer = create_optimizer(
            config.optimizer, training.num_steps, self.trainable, self.plateau_scale
        )
        self._weight_average: WeightAverage | None = None
        if training.average_weights_from_step is not None:
            self._weight_average = WeightAverage(
                self.model.trainable_variables,
                training.average_weights_from_step,
                training.average_weights_decay,
            )
        self._spike_detector: SpikeDetector | None = None
        if training.spike_deviations is not None:
            self._spike_detector = SpikeDetector(training.spike_deviations)

    def by_name(self) -> dict[str, keras.Variable]:
        """Returns all variables under the names that checkpoints have for them."""
        named = [(f"model/{variable.path}", variable) for variable in self.model.weights]
        named += [
            (f"auxiliary/{variable.path}", variable)
            for variable in self.objective.auxiliary_variables
        ]
        named += [(f"optimizer/{variable.path}", variable) for variable in self.optimizer.variables]
        if self._weight_average is not None:
            averages = self._weight_average.variables
            named += [(f"average/{path}", variable) for path, variable in averages.items()]
        if self._spike_detector is not None:
            figures = self._spike_detector.variables
            named += [(f"spikes/{name}", variable) for name, variable in figures.items()]
        if self.plateau_scale is not None:
            figures = self.plateau_scale.variables
            named += [(f"plateau/{name}", variable) for name, variable in figures.items()]
        return dict(named)

    def for_inference(self) -> dict[str, keras.Variable]:
        """Returns the weights to evaluate, generate and export with, by path.

        Returns:
            Dict of variable path to variable: averages where the run keeps
            them, see `TrainingConfig.average_weights_from_step`, else the
            weights.
        """
        weights = {variable.path: variable for variable in self.model.weights}
        if self._weight_average is not None:
            weights |= self._weight_average.averages
        return weights

    def train_step(
        self,
        replica_memory: ReplicaState,
        records: StepRecords,
        all_reduce: AllReduce | None = None,
    ) -> TrainStep:
        """Returns the step that changes these variables.

        Args:
            replica_memory: `ReplicaState` of the rows of each replica.
            records: `StepRecords`, where the figures of the step go.
            all_reduce: see `TrainStep`.

        Returns:
            A `TrainStep`.
        """
        training = self._config.training
        variables = self.trainable
        return TrainStep(
            config=training,
            row_gradients=RowGradients(
                self.objective, variables, training.gradient_accumulation_steps
            ),
            optimizer=self.optimizer,
            variables=variables,
            replica_memory=replica_memory,
            records=records,
            clip_norm=self._config.optimizer.clip_norm,
            weight_average=self._weight_average,
            spike_detector=self._spike_detector,
            all_reduce=all_reduce,
        )

    @property
    def trainable(self) -> list[keras.Variable]:
        """Everything that gradients change."""
        return [*self.model.trainable_variables, *self.objective.auxiliary_variables]
