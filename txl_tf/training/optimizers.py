"""Optimizers by name, with LAMB and Muon, and their learning-rate schedules."""

import math
from collections.abc import Sequence

import keras
from keras import ops

from txl_tf.config.optimizer import OptimizerConfig


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
      begins at step 1. The official code takes `peak * sqrt(warmup_steps)` as its setting, the rate
      that the formula has at step 1. See Vaswani et al. (2017), Section 5.3, https://arxiv.org/abs/1706.03762.
    """

    def __init__(self, config, num_steps):
        super().__init__()
        falls = config.schedule in ("cosine", "wsd")
        if falls and config.warmup_steps >= num_steps:
            raise ValueError(
                "`warmup_steps` must be less than `num_steps`. "
                f"Received: warmup_steps={config.warmup_steps}, num_steps={num_steps}"
            )
        self.config = config
        self.num_steps = num_steps

    def __call__(self, step):
        # Keras passes the number of updates before this one.
        return self.rate(ops.cast(step, "float32") + 1.0)

    def rate(self, step):
        """Returns the learning rate of the update of a step, counted from 1."""
        step, warmup_steps = ops.cast(step, "float32"), self.config.warmup_steps
        rate = self.config.learning_rate * self._share(step)
        return rate * ops.minimum(step / warmup_steps, 1.0) if warmup_steps else rate

    def _share(self, step):
        """Returns the share of the peak that the schedule leaves at a step, 1 before its fall."""
        config, floor = self.config, self.config.final_learning_rate_fraction
        match config.schedule:
            case "cosine":
                progress = self._fall_share(step, config.warmup_steps)
                return floor + (1.0 - floor) * (0.5 * (1.0 + ops.cos(math.pi * progress)))
            case "wsd":
                progress = self._fall_share(step, self.num_steps * (1.0 - config.decay_fraction))
                return floor + (1.0 - floor) * (1.0 - ops.sqrt(progress))
            case "inverse_square_root":
                top = float(max(config.warmup_steps, 1))
                return math.sqrt(top) * ops.rsqrt(ops.maximum(step, top))
            case _:
                return ops.ones_like(step)

    def _fall_share(self, step, begin):
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
            # Keras multiplies the step by the norm, so at most the limit remains. The formula
            # divides, because TensorFlow folds a constant numerator into other factors differently
            # on each replica, so that the weights of replicas drift apart; a test guards this.
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

    # A private method, because Keras 3.15 decays only in this one.
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
    `Lamb` and `Muon`. Common rules, and differences from the papers:

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
    # A private method, because Keras 3.15 would sum the clipped gradients over the replicas again.
    # Dividing the gradients beforehand would also be right, but cost a second all-reduce; a test
    # with two replicas guards this line.
    optimizer._all_reduce_sum_gradients = list
    exempt_variables = [
        each for each in variables if len(each.shape) < 2 or each.name.endswith("bias")
    ]
    # This comes before `build`, because Keras refuses it afterwards.
    optimizer.exclude_from_weight_decay(var_list=exempt_variables)
    optimizer.build(list(variables))
    return optimizer


def _keras_optimizer(schedule: WarmupSchedule) -> keras.optimizers.Optimizer:
    config = schedule.config
    # The name is fixed, because it is part of the names of variables in checkpoints.
    common = {"learning_rate": schedule, "name": "optimizer"}
    # `None` instead of 0, with which Keras would compute a decay without effect.
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
                weight_decay=decay,
            )
