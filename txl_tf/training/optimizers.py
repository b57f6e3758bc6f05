"""Optimizers by name, with Adafactor, LAMB and Muon, and their learning-rate schedules."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_tf.config.experiment import OptimizerConfig
from txl_tf.models.language_model import LanguageModel

# Relative to the best so far; less counts as no improvement.
_MIN_IMPROVEMENT = 1e-4
# Hyperparameters proposed by Shazeer and Stern: the decay of the means is 1 - step**-0.8.
_DECAY_EXPONENT = -0.8
_EPSILON_OF_SQUARES = 1e-30
_EPSILON_OF_SCALE = 1e-3
_MAX_UPDATE = 1.0


def stored_variable(name: str, value: Any, dtype: str) -> keras.Variable:
    """Creates a variable that no gradient changes and a checkpoint keeps."""
    return keras.Variable(value, dtype=dtype, trainable=False, autocast=False, name=name)


def stored_figures(*figures: tuple[str, Any, str]) -> dict[str, keras.Variable]:
    """Creates variables by name from tuples of name, initial value and dtype."""
    return {figure[0]: stored_variable(*figure) for figure in figures}


class PlateauScale:
    """Multiplier of the learning rate, from 1, that falls at every plateau.

    An evaluation is an improvement if it is below the best by more than one part in ten thousand.
    After more than `plateau_patience` evaluations in a row without improvement, the multiplier
    falls by `plateau_factor`, down to `final_learning_rate_fraction`, and the count restarts.
    `variables` hold the whole state, so a compiled step sees a new multiplier without retracing.
    """

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config
        self.variables = stored_figures(
            ("scale", 1.0, "float32"),
            # Finite, as all values in a checkpoint.
            ("best_nats", np.finfo(np.float32).max, "float32"),
            ("num_bad", 0, "int64"),
        )

    @property
    def scale(self) -> keras.Variable:
        """Multiplier, a float32 scalar."""
        return self.variables["scale"]

    def observe(self, nats_per_token: float) -> bool:
        """Records a validation loss, on the host between loops; True if the multiplier has fallen.

        All workers pass the same value. NaN is no improvement.
        """
        best, num_bad = self.variables["best_nats"], self.variables["num_bad"]
        # Rounded as it is stored, so that a resumed run compares the same numbers.
        nats = np.float32(nats_per_token)
        if nats < np.float32(best.numpy()) * np.float32(1.0 - _MIN_IMPROVEMENT):
            best.assign(nats)
            num_bad.assign(0)
            return False
        count = int(num_bad.numpy()) + 1
        if count <= self._config.plateau_patience:
            num_bad.assign(count)
            return False
        num_bad.assign(0)
        before = float(self.scale.numpy())
        lowest = self._config.final_learning_rate_fraction
        self.scale.assign(max(before * self._config.plateau_factor, lowest))
        return float(self.scale.numpy()) < before


@keras.saving.register_keras_serializable(package="txl_tf")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to `config.learning_rate`, then the decay that `config.schedule` names.

    Steps count from 1, and the update of step `k` applies `rate(k)`. In the warm-up this is
    `k / warmup_steps` of the peak; without a warm-up, step 1 applies the peak. The official
    TensorFlow code counts from 0, so its first step of a warm-up changes nothing.

    - "constant" stays at the peak.
    - "cosine" falls to `final_learning_rate_fraction` of the peak at step `num_steps`.
    - "wsd" stays at the peak, and falls to the same floor in the last `decay_fraction` of the
      steps, as `1 - sqrt(t)` with `t` from 0 to 1. Before the fall it does not depend on
      `num_steps`, so a checkpoint from there can be continued to any length. See Hägele et al.
      (2024), https://arxiv.org/abs/2405.18392.
    - "inverse_square_root" is `peak * sqrt(warmup_steps / step)`. Without a warm-up the decay
      begins at step 1. The official code is then given `peak * sqrt(warmup_steps)`, the learning
      rate of step 1. See Vaswani et al. (2017), Section 5.3, https://arxiv.org/abs/1706.03762.
    - "plateau" is the peak times the `plateau_scale`, a `PlateauScale`.
    """

    def __init__(self, config, num_steps, plateau_scale=None):
        super().__init__()
        falls = config.schedule in ("cosine", "wsd")
        if falls and config.warmup_steps >= num_steps:
            raise ValueError(
                "`warmup_steps` must be less than `num_steps`. "
                f"Received: warmup_steps={config.warmup_steps}, num_steps={num_steps}"
            )
        self.config = config
        self.num_steps = num_steps
        self.plateau_scale = plateau_scale

    def __call__(self, step):
        # Keras passes the number of updates before this one.
        return self.rate(ops.cast(step, "float32") + 1.0)

    def rate(self, step):
        """Returns the learning rate of the update of a step, counted from 1."""
        step, warmup_steps = ops.cast(step, "float32"), self.config.warmup_steps
        rate = self.config.learning_rate * self._share(step)
        return rate * ops.minimum(step / warmup_steps, 1.0) if warmup_steps else rate

    def _share(self, step):
        """Returns the share of the peak that is left at a step, 1 during the warm-up."""
        config, floor = self.config, self.config.final_learning_rate_fraction
        match config.schedule:
            case "cosine":
                done = self._done(step, config.warmup_steps)
                return floor + (1.0 - floor) * (0.5 * (1.0 + ops.cos(math.pi * done)))
            case "wsd":
                done = self._done(step, self.num_steps * (1.0 - config.decay_fraction))
                return floor + (1.0 - floor) * (1.0 - ops.sqrt(done))
            case "inverse_square_root":
                top = float(max(config.warmup_steps, 1))
                return math.sqrt(top) * ops.rsqrt(ops.maximum(step, top))
            case "plateau":
                return ops.convert_to_tensor(self.plateau_scale.scale)
            case _:
                return ops.ones_like(step)

    def _done(self, step, begin):
        """Returns the share of a fall that is done at a step, from 0 to 1."""
        begin = max(begin, 1)
        # A run of one step has no fall.
        return ops.clip((step - begin) / (self.num_steps - begin or 1), 0.0, 1.0)

    def get_config(self):
        return {**self.config.to_dict(), "num_steps": self.num_steps}

    @classmethod
    def from_config(cls, config):
        values = dict(config)
        num_steps = values.pop("num_steps")
        return cls(OptimizerConfig.from_dict(values), num_steps)


@keras.saving.register_keras_serializable(package="txl_tf")
class Adafactor(keras.optimizers.Optimizer):
    """Adafactor with the proposed hyperparameters and a given step size.

    The step of a variable is the learning rate times the root mean square of the variable, or
    times 0.001 if that is larger: the learning rate is relative, about 0.01. There is no momentum.
    The last two axes of a variable with two axes or more are factored. See Shazeer and Stern
    (2018), Algorithms 4 and 5, https://arxiv.org/abs/1804.04235.

    `keras.optimizers.Adafactor` is not used: it also keeps an array of the size of each matrix,
    which takes the memory that Adafactor is to save; its variables share names, so they cannot be
    stored by name; it lowers the learning rate to one over the root of the step on its own; and
    where a row and a column of a gradient are both zero it divides zero by zero.
    """

    def __init__(self, learning_rate=0.01, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)

    def build(self, variables):
        """Creates the means of the squares: of rows and columns, or of each value."""
        if self.built:
            return
        super().build(variables)
        self._means = [self._create_means(variable) for variable in variables]

    def _create_means(self, variable):
        shape = tuple(variable.shape)
        shapes = {"squares": shape}
        if len(shape) >= 2:
            shapes = {"rows": shape[:-1], "columns": (*shape[:-2], shape[-1])}
        prefix = variable.path.replace("/", "_")
        return tuple(
            self.add_variable(shape=each, dtype=variable.dtype, name=f"{prefix}_{name}")
            for name, each in shapes.items()
        )

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable and its means."""
        dtype = variable.dtype
        gradient = ops.cast(gradient, dtype)
        step = ops.cast(self.iterations + 1, dtype)
        # 1 at the first step, which takes the squares unchanged, so the start needs no correction.
        share = ops.power(step, _DECAY_EXPONENT)
        squares = ops.square(gradient) + _EPSILON_OF_SQUARES
        means = self._means[self._get_variable_index(variable)]
        if len(means) == 1:
            (mean,) = means
            self.assign(mean, mean + share * (squares - mean))
            update = gradient * ops.rsqrt(mean)
        else:
            rows, columns = means
            self.assign(rows, rows + share * (ops.mean(squares, axis=-1) - rows))
            self.assign(columns, columns + share * (ops.mean(squares, axis=-2) - columns))
            # One root after the other: the product of two small means would be zero.
            of_row = ops.rsqrt(rows / ops.mean(rows, axis=-1, keepdims=True))
            update = gradient * ops.expand_dims(of_row, -1)
            update = update * ops.expand_dims(ops.rsqrt(columns), -2)
        # Clips the update by its size, because the means lag behind a growing gradient.
        update = update / ops.maximum(_root_mean_square(update) / _MAX_UPDATE, 1.0)
        size = ops.maximum(_root_mean_square(variable), _EPSILON_OF_SCALE)
        self.assign_sub(variable, ops.cast(learning_rate, dtype) * size * update)


def _root_mean_square(tensor):
    return ops.sqrt(ops.mean(ops.square(tensor)))


@keras.saving.register_keras_serializable(package="txl_tf")
class Lamb(keras.optimizers.Lamb):
    """Keras' LAMB, with the norm of each variable limited in the trust ratio.

    `max_weight_norm` is the upper bound of the scaling function of You et al. (2020),
    https://arxiv.org/abs/1904.00962, which Keras leaves out and NVIDIA sets to 10; `None` sets no
    limit. As in Keras and unlike Algorithm 2 of the paper, weight decay is not part of the trust
    ratio. The correction of both means for their start from zero cancels in that ratio, except for
    `epsilon` and while a variable is all zeros, as new biases are.
    """

    def __init__(self, max_weight_norm=None, **kwargs):
        super().__init__(**kwargs)
        self.max_weight_norm = max_weight_norm

    def update_step(self, gradient, variable, learning_rate):
        """Updates one variable and its two means."""
        if self.max_weight_norm is not None:
            norm = ops.sqrt(ops.sum(ops.square(variable)))
            # Keras multiplies the step by the norm, so at most the limit remains. Written as a
            # quotient, because TensorFlow folds a constant numerator into other factors differently
            # on each replica, so that their weights drift apart; a test guards this.
            learning_rate = learning_rate / ops.maximum(norm / self.max_weight_norm, 1.0)
        super().update_step(gradient, variable, learning_rate)

    def get_config(self):
        return {**super().get_config(), "max_weight_norm": self.max_weight_norm}


@keras.saving.register_keras_serializable(package="txl_tf")
class Muon(keras.optimizers.Muon):
    """Keras' Muon with the weight decay of Keras' other optimizers.

    Keras' own decay assigns the weights in every replica and averages them over the replicas, an
    all-reduce of equal weights. Here one decay applies to all variables, so `adam_weight_decay`
    has no use.
    """

    def _apply_weight_decay(self, variables):
        keras.optimizers.Optimizer._apply_weight_decay(self, variables)


# Muon is for matrices between hidden states. Tables, projections of embeddings and softmax, and the
# attention biases also have two axes, so only kernels take its steps; AdamW takes the rest.
_NOT_A_KERNEL = r"^(?!.*/kernel$)"
_MUON_MOMENTUM = 0.95


def create_optimizer(
    schedule: WarmupSchedule, variables: Sequence[keras.Variable]
) -> keras.optimizers.Optimizer:
    """Creates the optimizer of a run, which takes gradients already summed over the replicas.

    The train step clips the sum; Keras would clip each replica's gradients before it. See also
    `Lamb`, `Adafactor` and `Muon`. Common rules, and differences from the papers:

    - Weight decay is decoupled, as in AdamW of PyTorch: before the step, weights shrink by the
      learning rate times `weight_decay`. Biases and variables with one axis do not decay.
    - Adam's `epsilon` is added before the bias correction, as `epsilon hat` in Section 2 of the
      paper.
    - The momentum of SGD sums steps, not gradients: after a change of the learning rate, past
      steps keep their size.
    - Muon scales its steps to the size of Adam's, so that both share one learning rate (Liu et al.,
      2025). Only kernels with two axes take its steps, always with Nesterov momentum.

    All state is in the variables of the optimizer, which have unique paths.
    """
    optimizer = _keras_optimizer(schedule)
    # Keras would sum the clipped gradients over the replicas again. Dividing beforehand would also
    # be right, but costs a second all-reduce of all gradients; a test with two replicas guards this
    # line.
    optimizer._all_reduce_sum_gradients = list
    kept = [each for each in variables if len(each.shape) < 2 or each.name.endswith("bias")]
    # Before it is built, because Keras refuses this afterwards.
    optimizer.exclude_from_weight_decay(var_list=kept)
    optimizer.build(list(variables))
    return optimizer


def _keras_optimizer(schedule: WarmupSchedule) -> keras.optimizers.Optimizer:
    config = schedule.config
    # A fixed name, because variables are saved under it.
    common = {"learning_rate": schedule, "name": "optimizer"}
    # Not 0, which would compute a decay without effect.
    decay = config.weight_decay or None
    adam = {"beta_1": config.beta_1, "beta_2": config.beta_2, "epsilon": config.epsilon}
    match config.name:
        case "adam":
            return keras.optimizers.Adam(**common, **adam)
        case "adamw":
            return keras.optimizers.AdamW(**common, **adam, weight_decay=config.weight_decay)
        case "lamb":
            limit = config.max_weight_norm
            return Lamb(max_weight_norm=limit, **common, **adam, weight_decay=decay)
        case "adafactor":
            return Adafactor(**common, weight_decay=decay)
        case "muon":
            return Muon(
                **common,
                adam_beta_1=config.beta_1,
                adam_beta_2=config.beta_2,
                epsilon=config.epsilon,
                weight_decay=decay,
                momentum=_MUON_MOMENTUM if config.momentum is None else config.momentum,
                exclude_layers=[_NOT_A_KERNEL],
            )
        case "sgd":
            return keras.optimizers.SGD(
                **common,
                momentum=config.momentum or 0.0,
                nesterov=config.nesterov,
                weight_decay=decay,
            )


def set_layer_rates(
    optimizer: keras.optimizers.Optimizer,
    model: LanguageModel,
    variables: list[keras.Variable],
    decay: float,
) -> None:
    """Multiplies the learning rate of each layer by `decay` for each layer above it.

    The head or the softmax learns at the full rate. Low layers hold features common to all texts
    and change least (Howard and Ruder, 2018, section 3.2). Weight decay keeps the full rate.
    """
    layers = [model.embedding, *model.blocks]
    factors = {
        variable.path: decay ** (len(layers) - height)
        for height, layer in enumerate(layers)
        for variable in layer.weights
    }
    by_index = {
        optimizer._get_variable_index(variable): factors.get(variable.path, 1.0)
        for variable in variables
    }
    update_step = optimizer.update_step

    def scaled_update_step(
        gradient: object, variable: keras.Variable, learning_rate: object
    ) -> None:
        factor = by_index[optimizer._get_variable_index(variable)]
        update_step(gradient, variable, learning_rate * factor)

    # Keras has one rate for all variables; this spares a subclass of each optimizer.
    optimizer.update_step = scaled_update_step
