"""Ordered batches from an array of tokens, and the smallest experiment to train on them."""

import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig, OptimizerConfig, TrainingConfig
from txl_tf.config.model import ModelConfig
from txl_tf.distribution.strategy import create_strategy

VOCABULARY_SIZE = 13
SEGMENT_LENGTH = 5


def toy_tokens(num_tokens=2000, vocabulary_size=VOCABULARY_SIZE, seed=7):
    """Tokens that depend on the ones before, so that memory is worth something."""
    drawn = np.random.default_rng(seed).integers(0, vocabulary_size, size=num_tokens)
    tokens = drawn.copy()
    for position in range(3, num_tokens):
        if drawn[position] % 3:  # two of three repeat what came three tokens earlier
            tokens[position] = (tokens[position - 3] + 1) % vocabulary_size
    return tokens.astype("int32")


class ToyBatches:
    """Rows cut from one array; each row continues where its last segment stopped.

    `restarts` are pairs of a step and a row where a stream starts besides the first segments. With
    `twins` the second half of the rows repeats the first.
    """

    def __init__(self, tokens, num_rows, segment_length=SEGMENT_LENGTH, restarts=(), twins=False):
        self.num_rows = num_rows
        self.segment_length = segment_length
        self.segments_per_row = (len(tokens) - 1) // (num_rows * segment_length)
        self._tokens = tokens
        self._restarts = frozenset(restarts)
        self._twins = twins

    def batch(self, step):
        """The global batch of a step as a dict of arrays."""
        segment = step % self.segments_per_row
        rows = np.arange(self.num_rows)
        if self._twins:
            rows %= self.num_rows // 2
        first = (rows * self.segments_per_row + segment) * self.segment_length
        places = first[:, None] + np.arange(self.segment_length)
        starts = [segment == 0 or (step, row) in self._restarts for row in range(self.num_rows)]
        return {
            "token_ids": self._tokens[places],
            "target_ids": self._tokens[places + 1],
            "start_of_stream": np.array(starts),
        }

    def dataset_function(self, first_step, rows, per_replica_rows, num_steps):
        """What `Trainer` takes: batches of one replica each, replicas in turn."""
        parts = []
        for step in range(first_step, first_step + num_steps):
            batch = self.batch(step)
            for first in range(rows.start, rows.stop, per_replica_rows):
                # Rows beyond the batch make up equal shares.
                share = np.arange(first, first + per_replica_rows) % self.num_rows
                parts.append({name: array[share] for name, array in batch.items()})
        stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
        options = tf.data.Options()
        options.autotune.enabled = False  # as in `TrainingSegments`
        return tf.data.Dataset.from_tensor_slices(stacked).with_options(options)


def toy_experiment(model=None, training=None, optimizer=None):
    """A configuration whose step takes milliseconds."""
    model_fields = {
        "vocabulary_size": VOCABULARY_SIZE,
        "num_layers": 1,
        "hidden_dim": 8,
        "num_heads": 2,
        "head_dim": 4,
        "intermediate_dim": 12,
        "segment_length": SEGMENT_LENGTH,
        "memory_length": 7,
        "dropout": 0.0,
        # Far from uniform predictions, so that memory and masks show in the loss.
        "initializer_stddev": 0.3,
    }
    training_fields = {
        "global_batch_size": 4,
        "num_steps": 20,
        "steps_per_loop": 1,
        # At the end only, so that loops have as many steps as tests say.
        "evaluate_every_steps": 1000,
        "seed": 3,
        "jit_compile": False,
    }
    optimizer_fields = {
        "learning_rate": 3e-3,
        "clip_norm": 100.0,
        # The slowest cosine of a position encoding is almost constant, so the softmax cancels it
        # and the gradients of its weights are rounding errors. Adam would divide them by
        # themselves; this epsilon keeps them small, so that runs can be compared.
        "epsilon": 1e-4,
    }
    return ExperimentConfig(
        model=ModelConfig(**{**model_fields, **(model or {})}),
        training=TrainingConfig(**{**training_fields, **(training or {})}),
        optimizer=OptimizerConfig(**{**optimizer_fields, **(optimizer or {})}),
    )


def largest_relative_difference(first, second):
    """Over dicts of arrays: each array's largest difference over its largest value."""
    assert first.keys() == second.keys()
    worst = 0.0
    for name, array in first.items():
        difference = np.max(np.abs(np.float64(array) - np.float64(second[name])), initial=0.0)
        scale = np.max(np.abs(np.float64(array)), initial=0.0)
        worst = max(worst, difference / scale if scale > 0.0 else difference)
    return float(worst)


def weight_of(model, path):
    """The variable of a model with this path."""
    (variable,) = (variable for variable in model.weights if variable.path == path)
    return variable


def strategy_of(num_replicas):
    """One device, or the two logical CPUs of the test process.

    The strategy over two is the one of the jobs, because a second one would number its collective
    operations from the start again, and TensorFlow remembers the shapes of earlier ones.
    """
    return create_strategy(num_cpu_replicas=num_replicas)
