"""Letters and spaces of Wikipedia: text8.

Command: txl train --config text8_large --data DIR --workdir DIR
    also text8_base
Hardware: text8_base 4 GPUs, text8_large 32 TPU cores (Dai et al., 2019).
Published: text8_large 1.08 bits per character on the test split.
Measured: not run.

On TPUs, Dai et al. clip the gradients of each core before they are added up;
here the sum is clipped, as they do on GPUs, which is stricter.
"""

from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.config.training_config import TrainingConfig
from txl_tf.models.presets import preset


def text8_base() -> ExperimentConfig:
    """Returns the experiment with 12 layers."""
    return ExperimentConfig(
        model=preset("text8_base"),
        training=TrainingConfig(
            global_batch_size=24,
            num_steps=400_000,
            steps_per_loop=200,
            checkpoint_every_steps=4000,
            evaluate_every_steps=4000,
        ),
        optimizer=OptimizerConfig(
            learning_rate=2.5e-4,
            warmup_steps=0,
            final_learning_rate_fraction=0.004,
            clip_norm=0.25,
        ),
        evaluation=EvaluationConfig(
            batch_size=10,
            segment_length=80,
            memory_length=2100,
            clamp_length=820,
            same_length=True,
        ),
    )


def text8_large() -> ExperimentConfig:
    """Returns the experiment with 24 layers."""
    return ExperimentConfig(
        model=preset("text8_large"),
        training=TrainingConfig(
            global_batch_size=64,
            num_steps=400_000,
            steps_per_loop=1000,
            checkpoint_every_steps=10000,
            evaluate_every_steps=10000,
        ),
        optimizer=OptimizerConfig(
            learning_rate=2.5e-4,
            warmup_steps=4000,
            final_learning_rate_fraction=0.01,
            clip_norm=0.25,
        ),
        evaluation=EvaluationConfig(
            batch_size=16,
            segment_length=128,
            memory_length=3800,
            clamp_length=1000,
            same_length=True,
        ),
    )
