"""Variables of a run: weights, optimizer state and weight average."""

import keras
import numpy as np

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.strategy import AnyStrategy, chip_of
from txl_tf.models import create_model
from txl_tf.models.adapters import Adapters
from txl_tf.models.language_model import assign_weights
from txl_tf.tpu_kernels.attention_choice import AttentionChoice
from txl_tf.training.objectives.objective import Objective
from txl_tf.training.optimizers import WarmupSchedule, create_optimizer
from txl_tf.training.weight_average import WeightAverage


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
    """All variables of a run: weights of the model and a head, optimizer state, weight average.

    A caller creates it under the scope of the strategy that trains. Initial weights are drawn from
    Keras' global seed.
    """

    def __init__(
        self, config: ExperimentConfig, objective_class: type[Objective], strategy: AnyStrategy
    ) -> None:
        training = config.training
        self.model = create_model(
            config.model,
            rematerialize=training.rematerialize,
            attention_kernel=attention_choice(config, strategy).kernel,
            dtype=training.dtype_policy,
        )
        # Before the others, because optimizer and average have variables for trainable weights
        # only.
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
        """Returns variables by their names in checkpoints.

        With adapters, their factors take the place of the weights of the model.
        """
        if self.adapters is None:
            pairs = [(f"model/{variable.path}", variable) for variable in self.model.weights]
        else:
            factors = self.adapters.factors
            pairs = [(f"adapter/{path}", variable) for path, variable in factors.items()]
        pairs += [(f"task/{variable.path}", variable) for variable in self.objective.head_variables]
        pairs += [(f"optimizer/{variable.path}", variable) for variable in self.optimizer.variables]
        if self.weight_average is not None:
            averages = self.weight_average.variables
            pairs += [(f"average/{name}", variable) for name, variable in averages.items()]
        return dict(pairs)

    def begin_from(self, weights: dict[str, np.ndarray]) -> None:
        """Loads the weights that a run begins from, by path, into the model and its average.

        Heads and adapters keep their initial weights if `weights` has none for them. The call comes
        before the first step. Raises MismatchError for weights of another model.
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
        """Returns the variables of `inference_weights`, by path.

        `None` with adapters: then the weights are computed, and no variable has them.
        """
        return self._averaged() if self.adapters is None else None

    def inference_weights(self) -> dict[str, np.ndarray]:
        """Returns the weights for evaluation, generation and export, by path."""
        arrays = {path: variable.numpy() for path, variable in self._averaged().items()}
        return arrays if self.adapters is None else self.adapters.merged(arrays)

    def frozen_weights(self) -> dict[str, np.ndarray]:
        """Returns the weights that adapters leave unchanged, by path; empty without adapters.

        Checkpoints leave them out.
        """
        if self.adapters is None:
            return {}
        others = (each for each in self.model.weights if each.path not in self.adapters.factors)
        return {variable.path: variable.numpy() for variable in others}

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables, frozen weights included."""
        average = self.weight_average
        averages = [] if average is None else average.variables.values()
        return [*self.objective.weights, *self.optimizer.variables, *averages]

    @property
    def trainable(self) -> list[keras.Variable]:
        """All variables that gradients change."""
        return [*self.model.trainable_variables, *self.objective.head_variables]
