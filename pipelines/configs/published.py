"""Experiments with the published models, one function per model.

Command: txl train --config enwik8_base --data DIR --workdir DIR
    also enwik8_18_layers and enwik8_large
Hardware: enwik8_base 4 GPUs, enwik8_large 32 TPU cores (Dai et al., 2019).
Published: 1.06, 1.03 and 0.99 bits per character on the test split.
Measured: not run.

On TPUs, Dai et al. clip the gradients of each core before they are added up;
here the sum is clipped, as they do on GPUs, which is stricter.
Of the model with 18 layers, depth and parameters are published and nothing
else: its width, its schedule and how it is evaluated were chosen here.

Command: txl train --config lm1b_base --data DIR --workdir DIR
    also lm1b_large
Hardware: lm1b_base 4 GPUs, lm1b_large 512 TPU cores (Dai et al., 2019).
Published: perplexity 23.5 and 21.8 on the test split.
Measured: not run.

On TPUs, Dai et al. clip the gradients of each core before they are added up;
here the sum is clipped, as they do on GPUs, which is stricter.

Command: txl train --config nvidia_wikitext103_base --data DIR --workdir DIR
    also nvidia_wikitext103_large
Hardware: 8 A100 GPUs, 110 minutes and 735 minutes (NVIDIA).
Published: perplexity 23.2 and 18.2 on the test split, with the LAMB optimizer.
Measured: not run.

NVIDIA's LAMB corrects no mean for its start, which the trust ratio cancels, and
takes query, key and value as one variable, where each has its own trust ratio
here. Gradients are clipped, the norm of a variable counts as 10 at most, and
nothing decays, as there.

Command: txl train --config penn_treebank --data DIR --workdir DIR
Hardware: one GPU should do; none is published.
Published: perplexity 54.5 on the test split (Dai et al., 2019).
Measured: not run.

Dai et al. publish that they use variational dropout and the average of the
weights, and 24M parameters. All other values were chosen here and have never
been tuned, so the published result is not to be expected.

Command: txl train --config text8_large --data DIR --workdir DIR
    also text8_base
Hardware: text8_base 4 GPUs, text8_large 32 TPU cores (Dai et al., 2019).
Published: text8_large 1.08 bits per character on the test split.
Measured: not run.

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

from txl_tf.config.experiment import EvaluationConfig, ExperimentConfig
from txl_tf.config.training import OptimizerConfig, TrainingConfig
from txl_tf.models.presets import preset


def enwik8_base() -> ExperimentConfig:
    """Returns the experiment with 12 layers."""
    return ExperimentConfig(
        model=preset("enwik8_base"),
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


def enwik8_18_layers() -> ExperimentConfig:
    """Returns the experiment with 18 layers."""
    return ExperimentConfig(
        model=preset("enwik8_18_layers"),
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


def enwik8_large() -> ExperimentConfig:
    """Returns the experiment with 24 layers."""
    return ExperimentConfig(
        model=preset("enwik8_large"),
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
