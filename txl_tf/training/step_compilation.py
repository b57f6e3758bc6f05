"""Choice of the parts of a training step that XLA compiles."""

import enum

import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.distribution.strategy import AnyStrategy

# Least widths at which PARTS is faster than WHOLE on a CPU: there TensorFlow's matrix products gain
# more time than separate operations cost. Products in bfloat16 gain more than in float32.
_NARROWEST_IN_PARTS = {"float32": 256, "mixed_bfloat16": 128}


class StepCompilation(enum.Enum):
    """Parts of a training step that XLA compiles."""

    WHOLE = "the whole step, as one program"
    PARTS = "all but matrix products, which TensorFlow computes"
    NOTHING = "nothing; a TPU compiles every program"

    @classmethod
    def choose(cls, experiment: ExperimentConfig, strategy: AnyStrategy) -> "StepCompilation":
        """Chooses the fastest way on TensorFlow; `training.jit_compile` decides on one replica."""
        training, model = experiment.training, experiment.model
        # The sum over several replicas on CPUs or GPUs cannot be compiled.
        is_alone = strategy.num_replicas_in_sync == 1
        is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        if is_tpu or not is_alone or training.jit_compile is False:
            return cls.NOTHING
        is_on_gpu = bool(tf.config.list_logical_devices("GPU"))
        if training.jit_compile or is_on_gpu or not isinstance(model, ModelConfig):
            return cls.WHOLE
        is_wide = model.hidden_dim >= _NARROWEST_IN_PARTS[training.dtype_policy]
        return cls.PARTS if is_wide else cls.WHOLE
