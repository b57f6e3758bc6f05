"""Variables of a run: weights, optimizer state, weight average, evaluation history."""

import math

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig, TrainingConfig
from txl_tf.models import create_model
from txl_tf.models.adapters import Adapters
from txl_tf.models.language_model import assign_weights
from txl_tf.training.attention_choice import attention_choice
from txl_tf.training.fine_tuning import TaskObjective
from txl_tf.training.objective import TrainingObjective
from txl_tf.training.optimizers import create_optimizer, create_plateau_scale, set_layer_rates
from txl_tf.training.schedules import PlateauScale
from txl_tf.training.weight_average import NonMonotoneTrigger, WeightAverage


class EvaluationHistory:
    """Last and best evaluation, which decide the next steps, so checkpoints keep them.

    The observers are told every loss, and keep their own state; `None` is left out.
    """

    def __init__(self, *observers: "PlateauScale | NonMonotoneTrigger | None") -> None:
        self._observers = [each for each in observers if each is not None]
        self.last_step = -1
        """Steps done at the last evaluation; -1 before the first."""
        self.best_step = -1
        """Steps done at the best evaluation; -1 before the first."""
        self.best_nats_per_token = math.inf
        """Loss of the best evaluation."""

    def observe(self, step: int, nats_per_token: float) -> bool:
        """Records an evaluation of the validation split; returns True if it is the best."""
        self.last_step = step
        for each in self._observers:
            each.observe(nats_per_token)
        if not nats_per_token < self.best_nats_per_token:
            return False
        self.best_step, self.best_nats_per_token = step, nats_per_token
        return True

    def has_stalled(self, training: TrainingConfig) -> bool:
        """True if no evaluation has been better for `training.stop_after_evaluations`."""
        if training.stop_after_evaluations is None or self.best_step < 0:
            return False
        waited_steps = self.last_step - self.best_step
        return waited_steps >= training.stop_after_evaluations * training.evaluation_period

    def state(self) -> dict[str, np.ndarray]:
        """Returns the history as arrays, by name."""
        return {
            "evaluation/last_step": np.asarray(self.last_step, np.int64),
            "evaluation/best_step": np.asarray(self.best_step, np.int64),
            # Finite, as all values in a checkpoint.
            "evaluation/best_nats_per_token": np.asarray(
                min(self.best_nats_per_token, np.finfo(np.float64).max), np.float64
            ),
        }

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Loads the arrays of `state`; raises ValueError if their names differ."""
        names = self.state().keys()
        if arrays.keys() != names:
            differing = sorted(names ^ arrays.keys())
            raise ValueError(f"`arrays` must have the names of `state`. Received: {differing}")
        self.last_step = int(arrays["evaluation/last_step"])
        self.best_step = int(arrays["evaluation/best_step"])
        self.best_nats_per_token = float(arrays["evaluation/best_nats_per_token"])


_DECAY = 0.98
_MIN_STEPS = 100


class SpikeDetector:
    """Running mean and deviation of the loss and of the gradient norm.

    A step is a spike if either is more than `deviations` standard deviations above its mean, once
    100 steps have been seen. A spike counts as a value at the limit, so that a run whose loss has
    risen for good is not skipped forever.
    """

    def __init__(self, deviations: float) -> None:
        self._deviations = deviations
        self.variables = {
            name: keras.Variable(
                tf.zeros(shape), dtype="float32", trainable=False, autocast=False, name=name
            )
            for name, shape in (("num_steps", []), ("means", [2]), ("variances", [2]))
        }

    def is_spike(self, loss: tf.Tensor, gradient_norm: tf.Tensor) -> tf.Tensor:
        """True, as a bool tensor, if a float32 scalar is a spike; inside `strategy.run` only."""
        is_above = tf.reduce_any(tf.stack([loss, gradient_norm]) > self._limits())
        return tf.logical_and(is_above, self.variables["num_steps"].value >= _MIN_STEPS)

    def next_values(self, loss: tf.Tensor, gradient_norm: tf.Tensor) -> list[tf.Tensor]:
        """Computes the next values of `variables`, in their order; inside `strategy.run` only."""
        num_steps, means, variances = (variable.value for variable in self.variables.values())
        values = tf.stack([loss, gradient_norm])
        values = tf.where(num_steps >= _MIN_STEPS, tf.minimum(values, self._limits()), values)
        # At first all steps count equally, so that the initial zeros have no weight.
        share = tf.maximum(1.0 / (num_steps + 1.0), 1.0 - _DECAY)
        distances = values - means
        return [
            num_steps + 1.0,
            means + share * distances,
            (1.0 - share) * (variances + share * distances * distances),
        ]

    def _limits(self) -> tf.Tensor:
        deviations = tf.sqrt(self.variables["variances"].value)
        return self.variables["means"].value + self._deviations * deviations


class TrainState:
    """All variables of a run: model, optimizer, averages, schedule.

    To be created under the scope of the strategy that trains. Initial weights are drawn from
    Keras' global seed.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        training = config.training
        self.model = create_model(
            config.model,
            rematerialize=training.rematerialize,
            attention_kernel=attention_choice(config, tf.distribute.get_strategy()).kernel,
            dtype=training.dtype_policy,
        )
        # First, because optimizer and average have variables for trainable weights only.
        self.model.freeze(config.frozen_parts)
        self.adapters: Adapters | None = None
        if training.adapter_rank is not None:
            self.adapters = Adapters(self.model, training.adapter_rank, training.adapter_alpha)
        self.objective: TrainingObjective | TaskObjective
        if config.task is None:
            self.objective = TrainingObjective(self.model, config)
        else:
            self.objective = TaskObjective(self.model, config)
        self.plateau_scale = create_plateau_scale(config.optimizer)
        self.optimizer = create_optimizer(
            config.optimizer, training.num_steps, self.trainable, self.plateau_scale
        )
        if config.optimizer.layer_rate_decay is not None:
            decay = config.optimizer.layer_rate_decay
            set_layer_rates(self.optimizer, self.model, self.trainable, decay)
        self.average_trigger: NonMonotoneTrigger | None = None
        if training.average_weights_after_evaluations is not None:
            self.average_trigger = NonMonotoneTrigger(training.average_weights_after_evaluations)
        self.weight_average: WeightAverage | None = None
        begin = self.average_trigger or training.average_weights_from_step
        if begin is not None:
            self.weight_average = WeightAverage(
                self._trainable_weights, begin, training.average_weights_decay
            )
        self.spike_detector: SpikeDetector | None = None
        if training.spike_deviations is not None:
            self.spike_detector = SpikeDetector(training.spike_deviations)

    def by_name(self) -> dict[str, keras.Variable]:
        """Returns all variables by their names in checkpoints.

        For a model with adapters these are the factors: the frozen weights are stored once.
        """
        if self.adapters is None:
            named = [(f"model/{variable.path}", variable) for variable in self.model.weights]
        else:
            factors = self.adapters.factors
            named = [(f"adapter/{path}", variable) for path, variable in factors.items()]
        named += [(f"task/{variable.path}", variable) for variable in self.objective.head_variables]
        named += [
            (f"auxiliary/{variable.path}", variable)
            for variable in self.objective.auxiliary_variables
        ]
        named += [(f"optimizer/{variable.path}", variable) for variable in self.optimizer.variables]
        parts = {
            "average": self.weight_average,
            "average_trigger": self.average_trigger,
            "spikes": self.spike_detector,
            "plateau": self.plateau_scale,
        }
        for part, owner in parts.items():
            if owner is not None:
                named += [(f"{part}/{name}", each) for name, each in owner.variables.items()]
        return dict(named)

    def begin_from(self, weights: dict[str, np.ndarray]) -> None:
        """Loads the weights that a run begins from, by path, into the model and its average.

        The head of a task and the factors of adapters keep their initial weights unless given.
        Raises MismatchError if the weights belong to another model.
        """
        own = {each.path: each for each in self.objective.head_variables}
        if self.adapters is not None:
            own |= self.adapters.factors
        weights = {path: each.numpy() for path, each in own.items()} | weights
        assign_weights(self._weights(), weights)
        if self.weight_average is not None:
            assign_weights(self.weight_average.averages, weights)

    def _weights(self) -> dict[str, keras.Variable]:
        weights = [*self.model.weights, *self.objective.head_variables]
        return {variable.path: variable for variable in weights}

    def for_inference(self) -> dict[str, keras.Variable]:
        """Returns the weights for evaluation, generation and export, by path.

        They are averages if the run keeps them. Adapters are not merged yet.
        """
        weights = self._weights()
        if self.weight_average is not None:
            weights |= self.weight_average.averages
        return weights

    def inference_arrays(self) -> dict[str, np.ndarray]:
        """Returns the values of `for_inference`, by path, with adapters merged."""
        arrays = {path: variable.numpy() for path, variable in self.for_inference().items()}
        return arrays if self.adapters is None else self.adapters.merged(arrays)

    def frozen_arrays(self) -> dict[str, np.ndarray]:
        """Returns the weights that adapters belong to, by path, which checkpoints leave out."""
        factors = {} if self.adapters is None else self.adapters.factors
        return {
            variable.path: variable.numpy()
            for variable in (self.model.weights if factors else [])
            if variable.path not in factors
        }

    @property
    def trainable(self) -> list[keras.Variable]:
        """All variables that gradients change."""
        return [*self._trainable_weights, *self.objective.auxiliary_variables]

    @property
    def _trainable_weights(self) -> list[keras.Variable]:
        return [*self.model.trainable_variables, *self.objective.head_variables]
