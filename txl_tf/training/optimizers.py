"""Optimizers by name, with Adafactor, LAMB and Muon, and learning rates of layers."""

from collections.abc import Sequence

import keras
from keras import ops

from txl_tf.config.experiment import OptimizerConfig
from txl_tf.models.language_model import LanguageModel
from txl_tf.training.schedules import (
    PlateauScale,
    WarmupConstant,
    WarmupCosineDecay,
    WarmupInverseSquareRoot,
    WarmupPlateau,
)

# The proposed hyperparameters of Shazeer and Stern: the decay of the means is 1 - step**-0.8.
_DECAY_EXPONENT = -0.8
_EPSILON_OF_SQUARES = 1e-30
_EPSILON_OF_SCALE = 1e-3
_MAX_UPDATE = 1.0


@keras.saving.register_keras_serializable(package="txl_tf")
class Adafactor(keras.optimizers.Optimizer):
    """Adafactor with the proposed hyperparameters and a given step size.

    The step of a variable is the learning rate times the root mean square of
    the variable, or times 0.001 if that is larger: the learning rate is a
    relative one, about 0.01. There is no momentum. Of variables with two axes
    or more, the last two are factored.

    `keras.optimizers.Adafactor` is not used: it also keeps an array of the
    size of each matrix, which takes the memory that Adafactor is to save;
    its variables share names, so they cannot be stored by name; it lowers the
    learning rate to one over the root of the step on its own; and where a row
    and a column of a gradient are both zero it divides zero by zero.

    Args:
        learning_rate: float or `keras.optimizers.schedules.LearningRateSchedule`.
        **kwargs: arguments of `keras.optimizers.Optimizer`.

    References:
     - [Shazeer and Stern, 2018](https://arxiv.org/abs/1804.04235), Algorithms 4 and 5
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
        """Changes one variable and its means."""
        dtype = variable.dtype
        gradient = ops.cast(gradient, dtype)
        step = ops.cast(self.iterations + 1, dtype)
        # 1 at the first step, which takes the squares as they are: no correction for the start.
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
        # Clips a variable's update by its size, since the means lag behind a gradient that grows.
        update = update / ops.maximum(_root_mean_square(update) / _MAX_UPDATE, 1.0)
        size = ops.maximum(_root_mean_square(variable), _EPSILON_OF_SCALE)
        self.assign_sub(variable, ops.cast(learning_rate, dtype) * size * update)


def _root_mean_square(tensor):
    return ops.sqrt(ops.mean(ops.square(tensor)))


@keras.saving.register_keras_serializable(package="txl_tf")
class Lamb(keras.optimizers.Lamb):
    """Keras' LAMB, with the norm of each variable limited in the trust ratio.

    Steps are proportional to the norm of a variable, so a large table takes
    large ones. The limit is the upper bound of the paper's scaling function,
    which Keras leaves out and NVIDIA sets to 10.

    Otherwise it is as in Keras, which differs from Algorithm 2 of the paper in
    that weight decay is not part of the trust ratio: before the step, weights
    shrink by the learning rate times `weight_decay`. Both means are corrected
    for their start from zero. The trust ratio cancels that correction but for
    `epsilon`, except while a variable is all zeros, as new biases are.

    Args:
        max_weight_norm: optional float. The limit; None: none.
        **kwargs: arguments of `keras.optimizers.Lamb`.

    References:
     - [You et al., 2020](https://arxiv.org/abs/1904.00962)
    """

    def __init__(self, max_weight_norm=None, **kwargs):
        super().__init__(**kwargs)
        self.max_weight_norm = max_weight_norm

    def update_step(self, gradient, variable, learning_rate):
        """Changes one variable and its two means."""
        if self.max_weight_norm is not None:
            norm = ops.sqrt(ops.sum(ops.square(variable)))
            # Keras multiplies the step by the norm, so this leaves the limit of it. Written as a
            # quotient because TensorFlow folds a constant numerator into other factors, not the
            # same way on every replica, whose weights then drift apart; a test guards this.
            learning_rate = learning_rate / ops.maximum(norm / self.max_weight_norm, 1.0)
        super().update_step(gradient, variable, learning_rate)

    def get_config(self):
        return {**super().get_config(), "max_weight_norm": self.max_weight_norm}


@keras.saving.register_keras_serializable(package="txl_tf")
class Muon(keras.optimizers.Muon):
    """Keras' Muon with the weight decay that Keras' other optimizers have.

    Keras' own assigns the decayed weights in every replica, and the mean over
    the replicas, which are all the same, becomes the weight: an all-reduce of
    all weights that changes nothing. For that, one decay is for all
    variables, whichever way their steps are computed.

    Args:
        **kwargs: arguments of `keras.optimizers.Muon`, without
            `adam_weight_decay`.
    """

    def _apply_weight_decay(self, variables):
        keras.optimizers.Optimizer._apply_weight_decay(self, variables)


# Muon is for matrices between hidden states. Tables, projections of embeddings and softmax, and
# the attention biases have two axes too, so all but kernels are left to its AdamW.
_NOT_A_KERNEL = r"^(?!.*/kernel$)"
_MUON_MOMENTUM = 0.95


def create_plateau_scale(config: OptimizerConfig) -> PlateauScale | None:
    """Builds the `PlateauScale` of the schedule "plateau"; `None` for all others."""
    if config.schedule != "plateau":
        return None
    return PlateauScale(
        config.plateau_factor, config.plateau_patience, config.final_learning_rate_fraction
    )


def create_schedule(
    config: OptimizerConfig, num_steps: int, plateau_scale: PlateauScale | None = None
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Builds the learning rate of a run.

    Args:
        config: `OptimizerConfig`.
        num_steps: int. Steps of the whole run.
        plateau_scale: `PlateauScale` if the schedule is "plateau", else None.

    Returns:
        A Keras schedule.

    Raises:
        ValueError: If `plateau_scale` is missing or would not be used.
    """
    if (plateau_scale is None) == (config.schedule == "plateau"):
        raise ValueError(
            'A `PlateauScale` is for the schedule "plateau", and needed there. '
            f"Received: schedule={config.schedule!r}, plateau_scale={plateau_scale}"
        )
    peak, warmup_steps = config.learning_rate, config.warmup_steps
    match config.schedule:
        case "cosine":
            floor = config.final_learning_rate_fraction
            return WarmupCosineDecay(peak, warmup_steps, num_steps, floor)
        case "inverse_square_root":
            return WarmupInverseSquareRoot(peak, warmup_steps)
        case "constant":
            return WarmupConstant(peak, warmup_steps)
        case "plateau":
            return WarmupPlateau(peak, warmup_steps, plateau_scale)


def create_optimizer(
    config: OptimizerConfig,
    num_steps: int,
    variables: Sequence[keras.Variable] | None = None,
    plateau_scale: PlateauScale | None = None,
) -> keras.optimizers.Optimizer:
    """Builds the optimizer of a run.

    Clipping is not the optimizer's: Keras would clip each replica's gradients
    before they are summed, and the train step clips the sum.

    What all have in common, and where Keras differs from the papers:

    - Weight decay is decoupled: before the step, weights shrink by the
      learning rate times `weight_decay`. That is Loshchilov and Hutter's
      AdamW, with the learning rate as part of the decay as in PyTorch. Only
      variables with two axes or more decay that are not biases.
    - Adam's `epsilon` is added before the bias correction, as `epsilon hat`
      in Section 2 of the paper.
    - The momentum of SGD is a sum of steps, not of gradients: after a change
      of the learning rate, past steps keep the size they had.
    - Muon scales its steps to the size of Adam's, so that one learning rate is
      for both (Liu et al., 2025). Only kernels with two axes take its steps,
      always with Nesterov momentum, all other variables those of AdamW.
    - For LAMB, Adafactor and Muon's weight decay see `Lamb`, `Adafactor` and
      `Muon`.

    Args:
        config: `OptimizerConfig`.
        num_steps: int. Steps of the whole run.
        variables: all variables that will be trained. Without, the optimizer
            is not yet built, and there can be no weight decay.
        plateau_scale: what `create_plateau_scale` returns.

    Returns:
        A Keras optimizer. It takes gradients that are already summed over the
        replicas. All its state is in its variables, which have unique paths.

    Raises:
        ValueError: If there is weight decay and no `variables`, or if
            `plateau_scale` is missing or would not be used.
    """
    if config.weight_decay and variables is None:
        raise ValueError(
            "Weight decay needs `variables`, for not all of them decay. Received: "
            f"weight_decay={config.weight_decay}, variables=None"
        )
    schedule = create_schedule(config, num_steps, plateau_scale)
    optimizer = _keras_optimizer(config, schedule)
    # Keras would sum over the replicas once more what the train step has summed
    # and clipped. Dividing beforehand would also be right, but costs a second
    # all-reduce of all gradients; a test with two replicas guards this line.
    optimizer._all_reduce_sum_gradients = list
    if variables is not None:
        kept = [variable for variable in variables if not _decays(variable)]
        # Before it is built; afterwards Keras refuses.
        optimizer.exclude_from_weight_decay(var_list=kept)
        optimizer.build(list(variables))
    return optimizer


def _keras_optimizer(
    config: OptimizerConfig, schedule: keras.optimizers.schedules.LearningRateSchedule
) -> keras.optimizers.Optimizer:
    # Variables are saved under this name, whatever was built before.
    common = {"learning_rate": schedule, "name": "optimizer"}
    # Not 0, so that what does not decay costs nothing.
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


def _decays(variable: keras.Variable) -> bool:
    return len(variable.shape) >= 2 and not variable.name.endswith("bias")


def set_layer_rates(
    optimizer: keras.optimizers.Optimizer,
    model: LanguageModel,
    variables: list[keras.Variable],
    decay: float,
) -> None:
    """Multiplies the learning rate of each layer by `decay` for each layer above it.

    What is above the layers, the head of a task or the softmax, learns at the full
    rate, and the highest layer at `decay` times it. Low layers hold what is common to
    texts and change least (Howard and Ruder, 2018, section 3.2; XLNet fine-tunes so).
    Weight decay keeps the full rate.

    Args:
        optimizer: Keras optimizer, built with `variables`.
        model: `LanguageModel`.
        variables: all variables that are trained.
        decay: float in `(0, 1)`.
    """
    factors = layer_rates(model, decay)
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

    # Keras has one rate for all variables, and a subclass of each optimizer would do no more.
    optimizer.update_step = scaled_update_step


def layer_rates(model: LanguageModel, decay: float) -> dict[str, float]:
    """Returns the factor of the learning rate by the path of each weight below the softmax."""
    layers = [model.embedding, *model.numbered_layers]
    return {
        variable.path: decay ** (len(layers) - height)
        for height, layer in enumerate(layers)
        for variable in layer.weights
    }
