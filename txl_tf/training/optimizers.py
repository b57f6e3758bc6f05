"""Optimizers and learning rates from their configuration."""

from collections.abc import Sequence

import keras

from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.training.adafactor import Adafactor
from txl_tf.training.lamb import Lamb
from txl_tf.training.muon import Muon
from txl_tf.training.plateau_scale import PlateauScale
from txl_tf.training.warmup_constant import WarmupConstant
from txl_tf.training.warmup_cosine_decay import WarmupCosineDecay
from txl_tf.training.warmup_inverse_square_root import WarmupInverseSquareRoot
from txl_tf.training.warmup_plateau import WarmupPlateau

# Muon is for matrices between hidden states. Tables, projections of embeddings and softmax, and
# the attention biases have two axes too, so all but kernels are left to its AdamW.
_NOT_A_KERNEL = r"^(?!.*/kernel$)"
_MUON_MOMENTUM = 0.95


def create_plateau_scale(config: OptimizerConfig) -> PlateauScale | None:
    """Builds the part of the schedule that learns of evaluations.

    Args:
        config: `OptimizerConfig`.

    Returns:
        A `PlateauScale`, or None if the schedule is not "plateau".
    """
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
