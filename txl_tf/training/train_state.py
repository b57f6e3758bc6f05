"""Variables of a run: weights, optimizer state, weight average, evaluation history."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig, TrainingConfig
from txl_tf.distribution.strategy import chip_of
from txl_tf.models import create_model
from txl_tf.models.adapters import Adapters
from txl_tf.models.language_model import assign_weights
from txl_tf.tpu_kernels.attention_plan import AttentionChoice
from txl_tf.training.optimizers import (
    PlateauScale,
    WarmupSchedule,
    create_optimizer,
    set_layer_rates,
    stored_figures,
    stored_variable,
)

_HISTORY = ("last_step", "best_step", "best_nats_per_token")


class EvaluationHistory:
    """Last and best evaluation, which decide the next steps, so checkpoints keep them.

    The observers are told every loss, and keep their own state; `None` is left out.
    """

    def __init__(self, *observers: "PlateauScale | NonMonotoneTrigger | None") -> None:
        self._observers = [each for each in observers if each is not None]
        # Steps done at these evaluations; -1 before the first.
        self.last_step = self.best_step = -1
        # Finite, as all values in a checkpoint.
        self.best_nats_per_token = float(np.finfo(np.float64).max)

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
        return {f"evaluation/{name}": np.asarray(getattr(self, name)) for name in _HISTORY}

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes the arrays of `state` out of `arrays`; KeyError if one is missing."""
        for name in _HISTORY:
            setattr(self, name, arrays.pop(f"evaluation/{name}").item())


class NonMonotoneTrigger:
    """Trigger that begins the average of the weights, based on evaluations (NT-ASGD).

    It fires, for good, if a loss is above the least of all losses but the last `n`
    (`num_evaluations`): then training only moves about an optimum. See Merity et al. (2018),
    Algorithm 1, https://arxiv.org/abs/1708.02182. `variables` hold the whole state.
    """

    def __init__(self, num_evaluations: int) -> None:
        # Finite, as all values in a checkpoint.
        largest = np.finfo(np.float32).max
        self.variables = stored_figures(
            ("is_on", 0, "int64"),
            ("num_observed", 0, "int64"),
            # The least loss before the last `n`, and the last `n` losses as a ring.
            ("least_nats", largest, "float32"),
            ("recent_nats", np.full(num_evaluations, largest, np.float32), "float32"),
        )

    @property
    def is_on(self) -> keras.Variable:
        """Int64 scalar, 1 once the trigger has fired, 0 before."""
        return self.variables["is_on"]

    def observe(self, nats_per_token: float) -> bool:
        """Records a validation loss, on the host between loops; True if the average has begun.

        All workers pass the same value. A loss that is not finite counts as the largest number.
        """
        # Rounded as it is stored, so that a resumed run compares the same numbers.
        largest = np.finfo(np.float32).max
        nats = np.nan_to_num(np.float32(nats_per_token), nan=largest, posinf=largest)
        recent, least = (self.variables[name] for name in ("recent_nats", "least_nats"))
        num_observed, losses = int(self.variables["num_observed"].numpy()), recent.numpy()
        if num_observed > len(losses) and nats > least.numpy():
            self.is_on.assign(1)
        place = num_observed % len(losses)
        least.assign(min(least.numpy(), losses[place]))
        losses[place] = nats
        recent.assign(losses)
        self.variables["num_observed"].assign(num_observed + 1)
        return bool(self.is_on.numpy())


class WeightAverage:
    """Average of the weights after each step, from some step on; the trained model uses it.

    Before its first step it equals the weights. Then it is the mean over the steps, as in averaged
    stochastic gradient descent (Merity et al., 2018, Section 3), or with `decay` an exponential
    mean (Kingma and Ba, 2015, Section 7.2, without bias correction, because it starts as the
    weights). Every replica averages its own copy of the equal weights, so nothing is sent.

    `variables` also count the averaged steps, because skipped steps have no share; a caller that
    undoes an update must restore all of them. `first_step` counts from 1, or is a trigger.
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        first_step: int | NonMonotoneTrigger,
        decay: float | None = None,
    ) -> None:
        self._weights = list(variables)
        self._first_step = first_step
        self._decay = decay
        self.averages = {
            each.path: stored_variable(each.path.replace("/", "_"), each.numpy(), each.dtype)
            for each in self._weights
        }
        self._num_steps = stored_variable("num_steps", 0, "int64")

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """All state by name: averages by the paths of their weights, and `num_steps`."""
        return {**self.averages, "num_steps": self._num_steps}

    def update(self, step: tf.Tensor) -> None:
        """Includes the weights after `step` steps; inside `strategy.run` only."""
        if isinstance(self._first_step, NonMonotoneTrigger):
            is_counted = self._first_step.is_on.value > 0
        else:
            is_counted = tf.cast(step, tf.int64) >= self._first_step
        count = self._num_steps.value + tf.cast(is_counted, tf.int64)
        tf.distribute.get_replica_context().merge_call(self._update_all, args=(count,))

    def _update_all(self, strategy: tf.distribute.Strategy, count: tf.Tensor) -> None:
        def update_one(average: tf.Variable, weight: tf.Variable, count: tf.Tensor) -> None:
            weight = tf.convert_to_tensor(weight)
            share = self._share(count, weight.dtype)
            mean = average + (weight - average) * share
            average.assign(tf.where(count > 1, mean, weight))

        for average, weight in zip(self.averages.values(), self._weights, strict=True):
            strategy.extended.update(
                average.value, update_one, args=(weight.value, count), group=False
            )
        strategy.extended.update(
            self._num_steps.value, lambda old, new: old.assign(new), args=(count,), group=False
        )

    def _share(self, count: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        if self._decay is not None:
            return tf.constant(1.0 - self._decay, dtype)
        return 1.0 / tf.cast(tf.maximum(count, 1), dtype)


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
        self.variables = stored_figures(
            ("num_steps", 0.0, "float32"),
            ("means", np.zeros(2), "float32"),
            ("variances", np.zeros(2), "float32"),
        )

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


def attention_choice(config: ExperimentConfig, strategy: tf.distribute.Strategy) -> AttentionChoice:
    """Chooses the attention of a run for the strategy that trains."""
    training = config.training
    if config.task is not None:
        return AttentionChoice.plain("fine-tuning reads texts in a loop, without the kernel")
    rows = training.rows_per_replica(strategy.num_replicas_in_sync)
    return AttentionChoice.for_model(
        config.model,
        setting=training.attention_kernel,
        chip=chip_of(strategy),
        num_rows=rows // training.gradient_accumulation_steps,
        num_tokens=config.model.segment_length,
        dtype="float32" if training.dtype_policy == "float32" else "bfloat16",
        rounds_products=training.tensor_float_32,
        is_differentiated=True,
    )


class TrainState:
    """All variables of a run: model, optimizer, averages, schedule.

    To be created under the scope of the strategy that trains. Initial weights are drawn from
    Keras' global seed.
    """

    def __init__(self, config: ExperimentConfig, objective_class: type[Any]) -> None:
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
        self.objective = objective_class(self.model, config)
        self.plateau_scale: PlateauScale | None = None
        if config.optimizer.schedule == "plateau":
            self.plateau_scale = PlateauScale(config.optimizer)
        self.schedule = WarmupSchedule(config.optimizer, training.num_steps, self.plateau_scale)
        self.optimizer = create_optimizer(self.schedule, self.trainable)
        if config.optimizer.layer_rate_decay is not None:
            decay = config.optimizer.layer_rate_decay
            set_layer_rates(self.optimizer, self.model, self.trainable, decay)
        self.average_trigger: NonMonotoneTrigger | None = None
        if training.average_weights_after_evaluations is not None:
            self.average_trigger = NonMonotoneTrigger(training.average_weights_after_evaluations)
        self.weight_average: WeightAverage | None = None
        begin = self.average_trigger or training.average_weights_from_step
        if begin is not None:
            decay = training.average_weights_decay
            self.weight_average = WeightAverage(self.trainable, begin, decay)
        self.spike_detector: SpikeDetector | None = None
        if training.spike_deviations is not None:
            self.spike_detector = SpikeDetector(training.spike_deviations)

    def by_name(self) -> dict[str, keras.Variable]:
        """Returns variables by their names in checkpoints; with adapters the factors alone."""
        if self.adapters is None:
            named = [(f"model/{variable.path}", variable) for variable in self.model.weights]
        else:
            factors = self.adapters.factors
            named = [(f"adapter/{path}", variable) for path, variable in factors.items()]
        named += [(f"task/{variable.path}", variable) for variable in self.objective.head_variables]
        named += [(f"optimizer/{variable.path}", variable) for variable in self.optimizer.variables]
        parts: dict[str, Any] = {
            "average": self.weight_average,
            "average_trigger": self.average_trigger,
            "spikes": self.spike_detector,
            "plateau": self.plateau_scale,
        }
        for part, owner in parts.items():
            variables = {} if owner is None else owner.variables
            named += [(f"{part}/{name}", each) for name, each in variables.items()]
        return dict(named)

    def begin_from(self, weights: dict[str, np.ndarray]) -> None:
        """Loads the weights that a run begins from, by path, into the model and its average.

        Heads and adapters keep their initial weights unless given. Raises MismatchError for weights
        of another model, ValueError after the first step.
        """
        step = int(self.optimizer.iterations.numpy())
        if step > 0:
            raise ValueError(f"`begin_from` needs a run at step 0. Received: a run at step {step}")
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

    def _averaged(self) -> dict[str, keras.Variable]:
        averages = {} if self.weight_average is None else self.weight_average.averages
        return self._weights() | averages

    def inference_variables(self) -> dict[str, keras.Variable] | None:
        """Returns the variables of `inference_weights`; `None` with adapters, which are merged."""
        return self._averaged() if self.adapters is None else None

    def inference_weights(self) -> dict[str, np.ndarray]:
        """Returns the weights for evaluation, generation and export, by path."""
        arrays = {path: variable.numpy() for path, variable in self._averaged().items()}
        return arrays if self.adapters is None else self.adapters.merged(arrays)

    def frozen_weights(self) -> dict[str, np.ndarray]:
        """Returns the weights below adapters, by path, which checkpoints leave out."""
        if self.adapters is None:
            return {}
        others = (each for each in self.model.weights if each.path not in self.adapters.factors)
        return {variable.path: variable.numpy() for variable in others}

    @property
    def observers(self) -> "tuple[PlateauScale | NonMonotoneTrigger | None, ...]":
        """Observers of every evaluation, for `EvaluationHistory`."""
        return self.plateau_scale, self.average_trigger

    @property
    def trainable(self) -> list[keras.Variable]:
        """All variables that gradients change."""
        return [*self.model.trainable_variables, *self.objective.head_variables]
