"""Variables of a run: weights, optimizer state, weight average, evaluation history."""

import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.distribution.tpu_chips import chip_of
from txl_tf.models.language_model import assign_weights, create_model
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.kernel_choice import AttentionChoice
from txl_tf.training.objective import TrainingObjective
from txl_tf.training.optimizers import create_optimizer, create_plateau_scale
from txl_tf.training.schedules import PlateauScale

# Of these XLA keeps all on a chip with 128 MiB by itself, and a kernel moves more.
_SMALL_SCORES_BYTES = 8 * 2**20


def attention_choice(config: ExperimentConfig, strategy: tf.distribute.Strategy) -> AttentionChoice:
    """Chooses how a run attends.

    Args:
        config: `ExperimentConfig`.
        strategy: `tf.distribute.Strategy` that trains.
    """
    training, model = config.training, config.model
    if training.attention_kernel == "never":
        return AttentionChoice.plain("training.attention_kernel is never")
    if not isinstance(model, ModelConfig) or model.position_encoding != "transformer_xl":
        return AttentionChoice.plain("the positions are not those of Transformer-XL")
    rows = training.rows_per_replica(strategy.num_replicas_in_sync)
    try:
        plan = AttentionPlan(
            num_rows=rows // training.gradient_accumulation_steps,
            segment_length=model.segment_length,
            memory_length=model.effective_memory_length,
            num_heads=model.num_heads,
            head_dim=model.head_dim,
            dtype="float32" if training.dtype_policy == "float32" else "bfloat16",
        )
    except ValueError:
        return AttentionChoice.plain("the keys of a row do not fit on a chip")
    if training.attention_kernel == "auto" and plan.score_bytes < _SMALL_SCORES_BYTES:
        return AttentionChoice.plain("the scores are small and stay on the chip without it")
    return AttentionChoice.for_chip(
        chip_of(strategy),
        rounds_products=training.tensor_float_32,
        is_forced=training.attention_kernel == "always",
    )


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
        """Takes in an evaluation of the validation split; returns whether it is the best."""
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


class WeightAverage:
    """An average of the weights after each step from some step on.

    Training goes on from the weights, and the average is what the trained
    model is used with. Up to its first step the average is the weights
    themselves. From then on it is the mean over the steps, as in averaged
    stochastic gradient descent (Merity et al., 2018), or with a decay an
    exponential one, in which older steps count less (Polyak averaging as in
    Section 7.2 of Kingma and Ba, 2015, without a correction for the start,
    for it starts as the weights and not as zero).

    Every replica keeps the average of its own copy of the weights, which are
    the same everywhere, so nothing is sent.

    `variables` holds its whole state: the averages, and how many steps they
    are of. That is counted and not taken from the step, because steps that
    are skipped change no weight and have no share. A caller that takes an
    update back must take back all of `variables`.

    Args:
        variables: the trainable variables, created in the scope of the
            strategy this is made in.
        first_step: int. The first step of which the weights count; the steps
            of a run are counted from 1.
        decay: optional float. What the average keeps of itself in a step;
            None: all steps count the same.

    Raises:
        ValueError: If the decay is not between 0 and 1.

    References:
     - [Merity et al., 2018](https://arxiv.org/abs/1708.02182), Section 3
     - [Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980), Section 7.2
    """

    def __init__(
        self, variables: Sequence[keras.Variable], first_step: int, decay: float | None = None
    ) -> None:
        if decay is not None and not 0.0 < decay < 1.0:
            raise ValueError(f"`decay` must be between 0 and 1, or None. Received: decay={decay}")
        self._weights = list(variables)
        self._first_step = first_step
        self._decay = decay
        self.averages = {
            variable.path: keras.Variable(
                variable.numpy(),
                dtype=variable.dtype,
                trainable=False,
                autocast=False,
                name=variable.path.replace("/", "_"),
            )
            for variable in self._weights
        }
        self._num_steps = keras.Variable(
            0, dtype="int64", trainable=False, autocast=False, name="num_steps"
        )

    @property
    def variables(self) -> dict[str, keras.Variable]:
        """All state by name: the averages by the paths of their weights, and `num_steps`."""
        return {**self.averages, "num_steps": self._num_steps}

    def update(self, step: tf.Tensor) -> None:
        """Takes the weights in; inside `strategy.run` only, after they were changed.

        Args:
            step: int tensor. Steps done, this one included.
        """
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

    A step is a spike if either is further above its mean than some number of
    standard deviations. Nothing is called a spike before 100 steps have been
    seen. A spike counts as a value at the limit, so that a run whose loss has
    risen for good is not skipped for ever.

    Args:
        deviations: float. Standard deviations above the mean that are still
            ordinary.
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
        """Judges a step by two float32 scalars; inside `strategy.run` only.

        Returns:
            Bool scalar tensor.
        """
        is_above = tf.reduce_any(tf.stack([loss, gradient_norm]) > self._limits())
        return tf.logical_and(is_above, self.variables["num_steps"].value >= _MIN_STEPS)

    def next_values(self, loss: tf.Tensor, gradient_norm: tf.Tensor) -> list[tf.Tensor]:
        """Computes the next values of `variables`, in their order; inside `strategy.run` only."""
        num_steps, means, variances = (variable.value for variable in self.variables.values())
        values = tf.stack([loss, gradient_norm])
        values = tf.where(num_steps >= _MIN_STEPS, tf.minimum(values, self._limits()), values)
        # At first all steps count the same, so that the zeros they start from have no share.
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

    To be created under the scope of the strategy that trains. Initial weights
    are drawn from Keras' global seed.

    Args:
        config: `ExperimentConfig`.

    Attributes:
        model: the language model, from `create_model`.
        objective: `TrainingObjective` of the model.
        optimizer: Keras optimizer, built.
        plateau_scale: `PlateauScale` if the schedule is "plateau", else None.
        weight_average: `WeightAverage` if the run averages its weights, else None.
        spike_detector: `SpikeDetector` if spikes are skipped, else None.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        training = config.training
        self.model = create_model(
            config.model,
            rematerialize=training.rematerialize,
            attention_kernel=attention_choice(config, tf.distribute.get_strategy()).kernel,
            dtype=training.dtype_policy,
        )
        # First of all: the optimizer has slots and the average has copies of what is trained.
        self.model.freeze(config.frozen_parts)
        self.objective = TrainingObjective(self.model, config)
        self.plateau_scale = create_plateau_scale(config.optimizer)
        self.optimizer = create_optimizer(
            config.optimizer, training.num_steps, self.trainable, self.plateau_scale
        )
        self.weight_average: WeightAverage | None = None
        if training.average_weights_from_step is not None:
            self.weight_average = WeightAverage(
                self.model.trainable_variables,
                training.average_weights_from_step,
                training.average_weights_decay,
            )
        self.spike_detector: SpikeDetector | None = None
        if training.spike_deviations is not None:
            self.spike_detector = SpikeDetector(training.spike_deviations)

    def by_name(self) -> dict[str, keras.Variable]:
        """Returns all variables under the names that checkpoints have for them."""
        named = [(f"model/{variable.path}", variable) for variable in self.model.weights]
        named += [
            (f"auxiliary/{variable.path}", variable)
            for variable in self.objective.auxiliary_variables
        ]
        named += [(f"optimizer/{variable.path}", variable) for variable in self.optimizer.variables]
        if self.weight_average is not None:
            averages = self.weight_average.variables
            named += [(f"average/{path}", variable) for path, variable in averages.items()]
        if self.spike_detector is not None:
            figures = self.spike_detector.variables
            named += [(f"spikes/{name}", variable) for name, variable in figures.items()]
        if self.plateau_scale is not None:
            figures = self.plateau_scale.variables
            named += [(f"plateau/{name}", variable) for name, variable in figures.items()]
        return dict(named)

    def begin_from(self, weights: dict[str, np.ndarray]) -> None:
        """Takes up weights that a run begins from; its average begins from them too.

        Args:
            weights: dict of the path of every weight of the model to its array.

        Raises:
            MismatchError: If they are not those of the model.
        """
        assign_weights({variable.path: variable for variable in self.model.weights}, weights)
        if self.weight_average is not None:
            assign_weights(self.weight_average.averages, weights)

    def for_inference(self) -> dict[str, keras.Variable]:
        """Returns the weights to evaluate, generate and export with, by path.

        They are averages where the run keeps them, see
        `TrainingConfig.average_weights_from_step`.
        """
        weights = {variable.path: variable for variable in self.model.weights}
        if self.weight_average is not None:
            weights |= self.weight_average.averages
        return weights

    @property
    def trainable(self) -> list[keras.Variable]:
        """Everything that gradients change."""
        return [*self.model.trainable_variables, *self.objective.auxiliary_variables]
