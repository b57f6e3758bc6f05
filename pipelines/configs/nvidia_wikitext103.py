"""Words of Wikipedia with NVIDIA's models: WikiText-103.

Command: txl train --config nvidia_wikitext103_base --data DIR --workdir DIR
    also nvidia_wikitext103_large
Hardware: 8 A100 GPUs, 110 minutes and 735 minutes (NVIDIA).
Published: perplexity 23.2 and 18.2 on the test split, with the LAMB optimizer.
Measured: not run.

NVIDIA's LAMB corrects no mean for its start, which the trust ratio cancels, and
takes query, key and value as one variable, where each has its own trust ratio
here. Gradients are clipped, the norm of a variable counts as 10 at most, and
nothing decays, as there.
"""

from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.config.training_config import TrainingConfig
from txl_tf.models.presets import preset


def nvidia_wikitext103_base() -> ExperimentConfig:
    """Returns the experiment with 16 layers."""
    return ExperimentConfig(
        model=preset("nvidia_wikitext103_base"),
        training=TrainingConfig(
            global_batch_size=256,
            num_steps=40_000,
            steps_per_loop=100,
            checkpoint_every_steps=5000,
            evaluate_every_steps=5000,
        ),
        optimizer=OptimizerConfig(
            name="lamb",
            learning_rate=0.01,
            warmup_steps=1000,
            final_learning_rate_fraction=0.1,
            clip_norm=0.25,
            epsilon=1e-6,
            max_weight_norm=10.0,
        ),
        evaluation=EvaluationConfig(
            batch_size=16,
            segment_length=64,
            memory_length=640,
            clamp_length=400,
            same_length=True,
        ),
    )


def nvidia_wikitext103_large() -> ExperimentConfig:
    """Returns the experiment with 18 layers."""
    return ExperimentConfig(
        model=preset("nvidia_wikitext103_large"),
        training=TrainingConfig(
            global_batch_size=128,
            num_steps=100_000,
            steps_per_loop=100,
            checkpoint_every_steps=5000,
            evaluate_every_steps=5000,
        ),
        optimizer=OptimizerConfig(
            name="lamb",
            learning_rate=0.01,
            warmup_steps=16000,
            final_learning_rate_fraction=0.01,
            clip_norm=0.25,
            epsilon=1e-6,
            max_weight_norm=10.0,
        ),
        evaluation=EvaluationConfig(
            batch_size=16,
            segment_length=128,
            memory_length=1600,
            clamp_length=1000,
            same_length=True,
        ),
    )
