"""Sentences of news: One Billion Word.

Command: txl train --config lm1b_base --data DIR --workdir DIR
    also lm1b_large
Hardware: lm1b_base 4 GPUs, lm1b_large 512 TPU cores (Dai et al., 2019).
Published: perplexity 23.5 and 21.8 on the test split.
Measured: not run.

On TPUs, Dai et al. clip the gradients of each core before they are added up;
here the sum is clipped, as they do on GPUs, which is stricter.
"""

from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.config.training_config import TrainingConfig
from txl_tf.models.presets import preset


def lm1b_base() -> ExperimentConfig:
    """Returns the experiment with 18 layers."""
    return ExperimentConfig(
        model=preset("lm1b_base"),
        training=TrainingConfig(
            global_batch_size=256,
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
            batch_size=16,
            segment_length=32,
            memory_length=128,
            same_length=True,
        ),
    )


def lm1b_large() -> ExperimentConfig:
    """Returns the experiment with 24 layers."""
    return ExperimentConfig(
        model=preset("lm1b_large"),
        training=TrainingConfig(
            global_batch_size=512,
            num_steps=1_200_000,
            steps_per_loop=1000,
            checkpoint_every_steps=10000,
            evaluate_every_steps=10000,
        ),
        optimizer=OptimizerConfig(
            learning_rate=1e-4,
            warmup_steps=30000,
            final_learning_rate_fraction=0.01,
            clip_norm=0.25,
        ),
        evaluation=EvaluationConfig(
            batch_size=16,
            segment_length=32,
            memory_length=128,
            same_length=True,
        ),
    )
