"""Variables of a run: weights, optimizer state, weight average, evaluation history."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_tf.config.experiment import ExperimentConfig, TrainingConfig
from txl_tf.distribution.step_context import assign_everywhere, current_value
from txl_tf.distribution.strategy import AnyStrategy, chip_of
from txl_tf.models import create_model
from txl_tf.models.adapters import Adapters
from txl_tf.models.language_model import assign_weights
from txl_tf.tpu_kernels.attention_choice import AttentionChoice
from txl_tf.training.optimizers import WarmupSchedule, create_optimizer


def _stored_variable(name: str, value: Any, dtype: str) -> keras.Variable:
    """Creates a variable that no gradient changes and a checkpoint keeps."""
    return keras.Variable(value, dtype=dtype, trainable=False, autocast=False, name=name)


_HISTORY = ("last_step", "best_step", "best_nats_per_token")


class EvaluationHistory:
    """Last and best evaluation, which decide when a run stops, so checkpoints keep them."""

    def __init__(self) -> None:
        # Steps done at these evaluations; -1 before the first.
        self.last_step = self.best_step = -1
        # Finite, as all values in a checkpoint.
        self.best_nats_per_token = float(np.finfo(np.float64).max)

    def observe(self, step: int, nats_per_token: float) -> bool:
        """Records an evaluation of the validation split; returns True if it is the best.

        `nats_per_token` is any number to minimize: for a task, minus its metric.
        """
        self.last_step = step
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


class WeightAverage:
    """Average of the weights after each step, from some step on; the trained model uses it.

    Before its first step it equals the weights. Then it is the mean over the steps, as in averaged
    stochastic gradient descent (Merity et al., 2018, Section 3), or with `decay` an exponential
    mean (Kingma and Ba, 2015, Section 7.2, without bias correction, because it starts as the
    weights). Every replica averages its own copy of the equal weights, so nothing is sent.

    `variables` also count the averaged steps, because skipped steps have no share; a caller that
    undoes an update must restore all of them. `first_step` counts from 1.
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        first_step: int,
        decay: float | None = None,
    ) -> None:
        self._weights = list(variables)
        self._first_step = first_step
        self._decay = decay
        self.averages = {
            each.path: _stored_variable(each.path.replace("/", "_"), each.numpy(), each.dtype)
            for each in self._weights
        }
        self._num_steps = _stored_variable("num_steps", 0, "int")

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """All state by name: averages by the paths of their weights, and `num_steps`."""
        return {**self.averages, "num_steps": self._num_steps}

    def update(self, step: Any) -> None:
        """Includes the weights after `step` steps; inside a step only."""
        count = current_value(self._num_steps)
        count += ops.cast(step >= self._first_step, count.dtype)
        weights = [current_value(weight) for weight in self._weights]
        assign_everywhere(self._next_average, list(self.averages.values()), weights, count)
        assign_everywhere(lambda old, new: new, [self._num_steps], [count])

    def _next_average(self, average: Any, weight: Any, count: Any) -> Any:
        share = 1.0 / ops.cast(ops.maximum(count, 1), weight.dtype)
        if self._decay is not None:
            share = ops.cast(1.0 - self._decay, weight.dtype)
        return ops.where(count > 1, average + (weight - average) * share, weight)


def attention_choice(config: ExperimentConfig, strategy: AnyStrategy) -> AttentionChoice:
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
    """All variables of a run: model, optimizer, average.

    To be created under the scope of the strategy that trains. Initial weights are drawn from
    Keras' global seed.
    """

    def __init__(
        self, config: ExperimentConfig, objective_class: type[Any], strategy: AnyStrategy
    ) -> None:
        training = config.training
        self.model = create_model(
            config.model,
            rematerialize=training.rematerialize,
            attention_kernel=attention_choice(config, strategy).kernel,
            dtype=training.dtype_policy,
        )
        # First, because optimizer and average have variables for trainable weights only.
        self.model.freeze(config.frozen_parts)
        self.adapters: Adapters | None = None
        if training.adapter_rank is not None:
            self.adapters = Adapters(self.model, training.adapter_rank, training.adapter_alpha)
        self.objective = objective_class(self.model, config)
        self.schedule = WarmupSchedule(config.optimizer, training.num_steps)
        self.optimizer = create_optimizer(self.schedule, self.trainable)
        self.weight_average: WeightAverage | None = None
        if training.average_weights_from_step is not None:
            self.weight_average = WeightAverage(
                self.trainable, training.average_weights_from_step, training.average_weights_decay
            )

    def by_name(self) -> dict[str, keras.Variable]:
        """Returns variables by their names in checkpoints; with adapters the factors alone."""
        if self.adapters is None:
            named = [(f"model/{variable.path}", variable) for variable in self.model.weights]
        else:
            factors = self.adapters.factors
            named = [(f"adapter/{path}", variable) for path, variable in factors.items()]
        named += [(f"task/{variable.path}", variable) for variable in self.objective.head_variables]
        named += [(f"optimizer/{variable.path}", variable) for variable in self.optimizer.variables]
        if self.weight_average is not None:
            averages = self.weight_average.variables
            named += [(f"average/{name}", variable) for name, variable in averages.items()]
        return dict(named)

    def begin_from(self, weights: dict[str, np.ndarray]) -> None:
        """Loads the weights that a run begins from, by path, into the model and its average.

        Heads and adapters keep their initial weights unless given. It comes before the first step.
        Raises MismatchError for weights of another model.
        """
        own = {each.path: each for each in self.objective.head_variables}
        if self.adapters is not None:
            own |= self.adapters.factors
        weights = {path: each.numpy() for path, each in own.items()} | weights
        assign_weights(self._weights(), weights)
        if self.weight_average is not None:
            assign_weights(self.weight_average.averages, weights)

    def _weights(self) -> dict[str, keras.Variable]:
        return {variable.path: variable for variable in self.objective.weights}

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
    def variables(self) -> list[keras.Variable]:
        """All variables, also frozen weights."""
        average = self.weight_average
        averages = [] if average is None else average.variables.values()
        return [*self.objective.weights, *self.optimizer.variables, *averages]

    @property
    def trainable(self) -> list[keras.Variable]:
        """All variables that gradients change."""
        return [*self.model.trainable_variables, *self.objective.head_variables]
