"""A small byte model that trains in minutes on two CPU cores.

Command: txl quickstart
Corpus: the source of the Python standard library, read as bytes.
Expected: 2.1 bits per byte or less over all test bytes, within 6 minutes.
Measured: see the results table of README.md.
"""

from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.config.training import OptimizerConfig, TrainingConfig


def quickstart() -> ExperimentConfig:
    """Returns the experiment."""
    return ExperimentConfig(
        model=ModelConfig(
            vocabulary_size=256,
            num_layers=3,
            hidden_dim=192,
            num_heads=3,
            head_dim=64,
            intermediate_dim=768,
            segment_length=32,
            memory_length=32,
            pre_norm=True,
            dropout=0.0,
            initializer_stddev=0.06,
        ),
        training=TrainingConfig(
            global_batch_size=64,
            num_steps=800,
            steps_per_loop=25,
            checkpoint_every_steps=200,
        ),
        optimizer=OptimizerConfig(
            learning_rate=4e-3,
            warmup_steps=75,
            final_learning_rate_fraction=0.02,
            clip_norm=0.25,
            beta_2=0.98,
        ),
        evaluation=EvaluationConfig(batch_size=128, segment_length=64, memory_length=64),
    )
