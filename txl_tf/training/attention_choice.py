"""Choice of the attention of a run: plain operations or the kernel for TPUs."""

import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.tpu_chips import chip_of
from txl_tf.tpu_kernels.kernel_choice import AttentionChoice


def attention_choice(config: ExperimentConfig, strategy: tf.distribute.Strategy) -> AttentionChoice:
    """Chooses the attention of a run for the strategy that trains."""
    training = config.training
    if config.task is not None:
        return AttentionChoice.plain("texts of a task are read in a loop")
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
