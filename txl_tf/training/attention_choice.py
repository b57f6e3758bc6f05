"""Choice of the way in which a run attends: plain operations or the kernel of TPUs."""

import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.distribution.tpu_chips import chip_of
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.kernel_choice import AttentionChoice

# Of these XLA keeps all on a chip with 128 MiB by itself, and a kernel moves more.
_SMALL_SCORES_BYTES = 8 * 2**20


def attention_choice(config: ExperimentConfig, strategy: tf.distribute.Strategy) -> AttentionChoice:
    """Chooses how a run attends.

    Args:
        config: `ExperimentConfig`.
        strategy: `tf.distribute.Strategy` that trains.
    """
    training, model = config.training, config.model
    if config.task is not None:
        return AttentionChoice.plain("texts of a task are read in a loop")
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
