"""Optimizers from their configuration."""

import keras

from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.training.warmup_cosine_decay import WarmupCosineDecay


def create_optimizer(config: OptimizerConfig, num_steps: int) -> keras.optimizers.Optimizer:
    """Builds the optimizer of a run.

    Clipping is not the optimizer's: Keras would clip each replica's gradients
    before they are summed, and the train step clips the sum.

    Args:
        config: `OptimizerConfig`.
        num_steps: int. Steps of the whole run.

    Returns:
        A Keras optimizer, not yet built. It takes gradients that are already
        summed over the replicas.
    """
    schedule = WarmupCosineDecay(
        config.learning_rate,
        config.warmup_steps,
        num_steps,
        config.final_learning_rate_fraction,
    )
    optimizer = keras.optimizers.Adam(
        learning_rate=schedule,
        beta_1=config.beta_1,
        beta_2=config.beta_2,
        epsilon=config.epsilon,
        # Variables are saved under this name, whatever was built before.
        name="optimizer",
    )
    # Keras would sum over the replicas once more what the train step has summed
    # and clipped. Dividing beforehand would also be right, but costs a second
    # all-reduce of all gradients; a test with two replicas guards this line.
    optimizer._all_reduce_sum_gradients = list
    return optimizer
