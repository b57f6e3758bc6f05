"""Words of Wikipedia: WikiText-103.

Command: txl train --config wikitext103_base --data DIR --workdir DIR
    also wikitext103_large
Hardware: wikitext103_base 4 GPUs, wikitext103_large 64 TPU cores (Dai et al.,
    2019).
Published: perplexity 24.0 and 18.3 on the test split.
Measured: not run.

On TPUs, Dai et al. clip the gradients of each core before they are added up;
here the sum is clipped, as they do on GPUs, which is stricter.
The steps are those of the published schedule; at which of them the released
large model was taken is not known.
"""

from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.config.training_config import TrainingConfig
from txl_tf.models.presets import preset


def wikitext103_base() -> ExperimentConfig:
    """Returns the experiment with 16 layers."""
    return ExperimentConfig(
        model=preset("wikitext103_base"),
        training=TrainingConfig(
            global_batch_size=60,
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
            segment_length=64,
            memory_length=640,
            clamp_length=400,
            same_length=True,
        ),
    )


def wikitext103_large() -> ExperimentConfig:
    """Returns the experiment with 18 layers."""
    return ExperimentConfig(
        model=preset("wikitext103_large"),
        training=TrainingConfig(
            global_batch_size=128,
            num_steps=4_000_000,
            steps_per_loop=1000,
            checkpoint_every_steps=10000,
            evaluate_every_steps=10000,
        ),
        optimizer=OptimizerConfig(
            learning_rate=2.5e-4,
            warmup_steps=16000,
            final_learning_rate_fraction=0.01,
            clip_norm=0.25,
        ),
        evaluation=EvaluationConfig(
            batch_size=16,
            segment_length=128,
            memory_length=1600,
            clamp_length=1000,
            same_length=True,
        ),
    )
