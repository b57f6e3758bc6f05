"""Small configurations, models, batches, texts, trainers and runs that tests share.

For a test of a model, `small_config` returns its settings; the test passes the sizes that matter.
For a test of training, `toy_experiment` returns the settings, `toy_tokens` and `ToyBatches` are the
text, and `toy_trainer` and `shared_trainer` return a trainer. `toy_text` returns a text to
evaluate. `write_run` writes the folder of a run without training.
"""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.config.training import TrainingConfig
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.distribution.strategy import create_strategy
from txl_tf.evaluation.evaluation_text import EvaluationText
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.model_folder import RunDescription, Workdir, data_identity
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.trainer import Trainer

VOCABULARY_SIZE = 13
SEGMENT_LENGTH = 5
NUM_TOKENS = 3398
NUM_ROWS = 4


def small_config(
    segment_length: int,
    memory_length: int,
    *,
    vocabulary_size: int = 11,
    width: int = 8,
    num_heads: int = 2,
    **changes: Any,
) -> ModelConfig:
    """Creates settings of two layers, whose heads share the width; the inner width is twice it."""
    sizes = {
        "num_layers": 2,
        "head_dim": width // num_heads,
        "intermediate_dim": 2 * width,
        **changes,
    }
    return ModelConfig(
        vocabulary_size=vocabulary_size,
        hidden_dim=width,
        num_heads=num_heads,
        segment_length=segment_length,
        memory_length=memory_length,
        **sizes,
    )


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Returns the weights of a model by path."""
    return {variable.path: variable.numpy() for variable in model.weights}


def with_drawn_weights(model: Any, scale: float) -> Any:
    """Gives every weight of a model large random numbers, and returns the model."""
    for index, variable in enumerate(model.weights):
        numbers = np.random.default_rng(index).normal(scale=scale, size=variable.shape)
        variable.assign(numbers.astype("float32"))
    return model


def small_result(**changes: Any) -> EvaluationResult:
    """Creates the result of an evaluation of 12 tokens, with 2.5 bits for each."""
    fields = {
        "split": "valid",
        "step": 40,
        "total_nats": 30.0 * math.log(2.0),
        "num_tokens": 12,
        "num_bytes": 20.0,
        "num_characters": 15.0,
        "num_words": 5.0,
        "segment_length": 5,
        "memory_length": 7,
        "clamp_length": None,
        "same_length": False,
        "same_length_keys": None,
        "dtype_policy": "float32",
        "batch_size": 3,
        "warm_up_tokens": 0,
        "masks_documents": False,
        "dynamic_learning_rate": None,
        "dynamic_decay": None,
        "seconds": 0.5,
    }
    return EvaluationResult(**{**fields, **changes})


def toy_tokens(num_tokens=2000, vocabulary_size=VOCABULARY_SIZE, seed=7):
    """Draws tokens that depend on earlier ones, so that memory lowers the loss."""
    numbers = np.random.default_rng(seed).integers(0, vocabulary_size, size=num_tokens)
    tokens = numbers.copy()
    for position in range(3, num_tokens):
        if numbers[position] % 3:  # two of three repeat what came three tokens earlier
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
        """Returns batches in the form that `Trainer` takes: each is of one replica, in turn."""
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
    """Creates a configuration whose step takes milliseconds."""
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
        # Predictions are far from uniform, so that memory and masks change the loss.
        "initializer_stddev": 0.3,
    }
    training_fields = {
        "global_batch_size": 4,
        "num_steps": 20,
        "steps_per_loop": 1,
        # Evaluations are at the end only, so that loops have as many steps as tests set.
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
    """Returns the largest ratio of a difference in an array to the largest value of the array."""
    assert first.keys() == second.keys()
    worst = 0.0
    for name, array in first.items():
        difference = np.max(np.abs(np.float64(array) - np.float64(second[name])), initial=0.0)
        scale = np.max(np.abs(np.float64(array)), initial=0.0)
        worst = max(worst, difference / scale if scale > 0.0 else difference)
    return float(worst)


def weight_of(model, path):
    """Returns the variable of a model with this path."""
    (variable,) = (variable for variable in model.weights if variable.path == path)
    return variable


def strategy_of(num_replicas):
    """Returns the strategy of one device, or of the two logical CPUs of the test process.

    The strategy of two is the same object as in jobs. A second one would number its collective
    operations from the start again, while TensorFlow remembers the shapes of earlier operations.
    """
    return create_strategy(num_cpu_replicas=num_replicas)


def text_of(tokens, starts=(0,)):
    """Creates a text with three bytes a token, whose documents begin at the places `starts`."""
    is_start = np.isin(np.arange(len(tokens)), starts)
    return EvaluationText(
        name="valid",
        num_tokens=len(tokens),
        read_tokens=lambda start, stop: tokens[start:stop],
        read_document_starts=lambda start, stop: is_start[start:stop],
        num_bytes=3 * len(tokens),
        num_characters=2 * len(tokens),
        num_words=len(tokens),
    )


def toy_text(vocabulary_size):
    """Creates a text of `NUM_TOKENS` predictions."""
    tokens = toy_tokens(NUM_TOKENS + 1, vocabulary_size)
    return text_of(tokens, np.flatnonzero(tokens == 0))


def toy_trainer(batches=None, num_replicas=1, describe_row=None, **sections):
    """Creates a trainer; `sections` are arguments of `toy_experiment`."""
    batches = batches or ToyBatches(toy_tokens(), NUM_ROWS)
    return Trainer(
        toy_experiment(**sections),
        strategy_of(num_replicas),
        batches.dataset_function,
        describe_row,
    )


class _ReplaceableBatches:
    """Batches of a trainer that tests share; each test puts its own in `batches`."""

    def dataset_function(self, **arguments):
        return self.batches.dataset_function(**arguments)


def shared_trainer(batches=None, num_replicas=1, **sections):
    """Returns a trainer before its first step, which tests of one process share.

    Tracing a step takes two seconds, so tests with other batches use the same trainer. A trainer
    that was stopped cannot be shared.
    """
    trainer, source, first_state = _traced_trainer(toy_experiment(**sections), num_replicas)
    source.batches = batches or ToyBatches(toy_tokens(), NUM_ROWS)
    trainer.load_arrays(first_state)
    return trainer


@functools.lru_cache(maxsize=8)
def _traced_trainer(experiment, num_replicas):
    source = _ReplaceableBatches()
    trainer = Trainer(experiment, strategy_of(num_replicas), source.dataset_function)
    return trainer, source, trainer.arrays()


def write_run(folder: Path, tokenizer: Tokenizer, text: str) -> tuple[Workdir, Path]:
    """Writes a data set and a run with one checkpoint, which is its best."""
    manifest = prepare_dataset({"valid": [text.encode()]}, tokenizer, str(folder / "data"), "toy")
    data = data_identity(manifest)
    experiment = toy_experiment(model={"vocabulary_size": manifest.vocabulary_size})
    experiment = experiment.replace(evaluation=EvaluationConfig(batch_size=2))
    workdir = Workdir(folder / "run")
    run = workdir.begin(experiment, data)
    workdir.keep_vocabulary(tokenizer.vocabulary_files)
    weights = TransformerXL(experiment.model).weights
    store = run.checkpoints(workdir.folder)
    store.save(7, {f"model/{variable.path}": variable.numpy() for variable in weights})
    store.keep_best(7)
    return workdir, folder / "data"


def checkpoints_of(folder):
    """Returns the checkpoints of the run in a folder."""
    return RunDescription.read(str(folder)).checkpoints(str(folder))


def last_state_of(folder):
    """Returns the bytes of the ledger and of the arrays of the last checkpoint of a run."""
    store = checkpoints_of(folder)
    arrays = store.load(store.steps()[-1])
    state = {name: (array.dtype, array.tobytes()) for name, array in arrays.items()}
    return (Path(folder) / "ledger.jsonl").read_bytes(), state
