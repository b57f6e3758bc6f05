"""Choice of the parts of a training step that XLA compiles."""

import enum

import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig

# From these widths on, TensorFlow's products on a CPU gain more than separate operations cost.
# Products in bfloat16 gain more.
_NARROWEST_IN_PARTS = {"float32": 256, "mixed_bfloat16": 128}


class StepCompilation(enum.Enum):
    """Parts of a training step that XLA compiles."""

    WHOLE = "the whole step, as one program"
    PARTS = "what goes over each number once, with the products of TensorFlow between them"
    NOTHING = "nothing; TPUs compile by themselves"

    @classmethod
    def choose(
        cls, config: ExperimentConfig, strategy: tf.distribute.Strategy
    ) -> "StepCompilation":
        """Chooses the fastest way for a strategy, unless `training.jit_compile` decides."""
        training, model = config.training, config.model
        # The sum over several replicas on CPUs or GPUs cannot be compiled.
        is_alone = strategy.num_replicas_in_sync == 1
        is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        if is_tpu or not is_alone or not training.may_compile:
            return cls.NOTHING
        is_on_gpu = bool(tf.config.list_logical_devices("GPU"))
        if training.jit_compile or is_on_gpu or not isinstance(model, ModelConfig):
            return cls.WHOLE
        is_wide = model.hidden_dim >= _NARROWEST_IN_PARTS[training.dtype_policy]
        return cls.PARTS if is_wide else cls.WHOLE
