"""Words of newspapers: Penn Treebank.

Command: txl train --config penn_treebank --data DIR --workdir DIR
Hardware: one GPU should do; none is published.
Published: perplexity 54.5 on the test split (Dai et al., 2019).
Measured: not run.

Dai et al. publish that they use variational dropout and the average of the
weights, and 24M parameters. All other values were chosen here and have never
been tuned, so the published result is not to be expected.
"""

from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.config.training_config import TrainingConfig
from txl_tf.models.presets import preset


def penn_treebank() -> ExperimentConfig:
    """Returns the experiment."""
    return ExperimentConfig(
        model=preset("penn_treebank"),
        training=TrainingConfig(
            global_batch_size=20,
            num_steps=200_000,
            steps_per_loop=200,
            checkpoint_every_steps=4000,
            evaluate_every_steps=4000,
            average_weights_from_step=100_000,
        ),
        optimizer=OptimizerConfig(
            learning_rate=2.5e-4,
            warmup_steps=1000,
            final_learning_rate_fraction=0.1,
            clip_norm=0.25,
        ),
        evaluation=EvaluationConfig(
            batch_size=10,
            segment_length=70,
            memory_length=280,
            same_length=True,
        ),
    )
