"""Training, evaluation and generation in turns, by the defaults of their jobs.

Tokens and weights are random: the time does not depend on them.
Shape letters used in this module: B rows, T segment length, M memory length.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.config.base import MAX_STEPS_PER_LOOP
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.strategy import create_strategy
from txl_tf.evaluation.text_rows import EvaluationText
from txl_tf.generation import GenerationSession
from txl_tf.generation.session import CAPACITY
from txl_tf.models.language_model import create_model
from txl_tf.models.memory import Memory
from txl_tf.samplers import TopPSampler
from txl_tf.training.step_records import LoopReport
from txl_tf.training.trainer import Trainer

from ..evaluation.splits import create_evaluator
from ..training_data import TrainingData
from .data_work import write_random_dataset
from .turn_server import Turn

# As `txl generate` does without options.
_TOP_P = 0.9
_PROMPT_TOKENS = 16
# Segments of every row, before the corpus begins again.
_SEGMENTS_PER_ROW = 64


class TrainingTurns:
    """Loops of a trainer over random tokens, as `txl train` runs them.

    The host looks again after the steps of a turn, where these are fewer than
    `steps_per_loop`. Ledger and checkpoints are not written.

    Args:
        experiment: `ExperimentConfig`.
        folder: str. Where the tokens are written.
    """

    def __init__(self, experiment: ExperimentConfig, folder: str) -> None:
        # As a run does.
        tf.config.experimental.enable_op_determinism()
        # However short the run is that has these settings, turns do not end.
        training = experiment.training.replace(num_steps=MAX_STEPS_PER_LOOP)
        experiment = experiment.replace(training=training)
        row_tokens = _SEGMENTS_PER_ROW * experiment.model.segment_length
        dataset = write_random_dataset(
            folder,
            training.global_batch_size * row_tokens + 1,
            experiment.model.vocabulary_size,
        )
        self._data = TrainingData(dataset, experiment)
        self._most_steps = training.steps_per_loop
        self._trainer = Trainer(
            experiment,
            create_strategy(),
            self._data.reader.dataset_fn,
            self._data.reader.describe_row,
            self._data.count_tokens,
        )
        self._reports: Iterator[LoopReport] = self._trainer.run(measures_updates=True)

    def __call__(self, count: int) -> dict[str, Any]:
        """Does as many steps, in loops of `steps_per_loop` at most."""
        tokens, end = 0, self._trainer.step + count
        while (left := end - self._trainer.step) > 0:
            self._stop_after(min(left, self._most_steps))
            tokens += next(self._reports).num_tokens
        return {"tokens": tokens}

    def _stop_after(self, num_steps: int) -> None:
        config = self._trainer.config
        # Loops end at multiples of it, of which this is the first to come.
        period = self._trainer.step + num_steps
        training = config.training.replace(steps_per_loop=period)
        self._trainer.config = config.replace(training=training)


def evaluate(experiment: ExperimentConfig) -> Turn:
    """Creates the work of evaluating; each time every row reads as much as is read at once.

    A part of it takes as long as all of it, so that other lengths show less than the speed
    of a long text.
    """
    evaluator = create_evaluator(experiment, create_strategy())
    config, num_rows = evaluator.config, experiment.evaluation.batch_size
    num_segments = evaluator.segments_per_read(num_rows)

    def turn(count: int) -> dict[str, Any]:
        tokens = random_tokens(
            count * num_rows * num_segments * config.segment_length + 1, config.vocabulary_size
        )
        sizes = {"num_bytes": len(tokens), "num_characters": len(tokens), "num_words": 1}
        text = EvaluationText.of_tokens("random", tokens, **sizes)
        return {"tokens": evaluator.evaluate(text, step=0).num_tokens}

    return turn


def generate(experiment: ExperimentConfig, num_rows: int) -> Turn:
    """Creates the work of generating with a full memory.

    Each time, as many tokens are written for every row as memory takes over at
    once. A single row writes them one by one, as text is streamed.

    Args:
        experiment: `ExperimentConfig`. The model is in float32, as in `txl generate`.
        num_rows: int. `B`.
    """
    config = experiment.model
    model = create_model(config, dtype="float32")
    memory = model.initial_memory(num_rows)
    if isinstance(memory, Memory):
        generator = np.random.default_rng(0)
        memory = memory._replace(
            states=tuple(
                generator.normal(size=each.shape).astype("float32") for each in memory.states
            ),
            valid_length=np.full((num_rows,), config.effective_memory_length, np.int32),
        )
    session = GenerationSession(model, TopPSampler(_TOP_P), num_rows=num_rows, memory=memory)
    prompt = random_tokens(_PROMPT_TOKENS, config.vocabulary_size)
    session.write([prompt] * num_rows, num_tokens=1)

    def turn(count: int) -> dict[str, Any]:
        for _ in range(count):
            if num_rows > 1:
                session.write(num_tokens=CAPACITY)
                continue
            for _ in range(CAPACITY):
                session.write(num_tokens=1)
        return {"tokens": count * CAPACITY * num_rows}

    return turn


def random_tokens(num_tokens: int, vocabulary_size: int) -> np.ndarray:
    """Draws token ids `(num_tokens,)`, int32."""
    return np.random.default_rng(0).integers(0, vocabulary_size, num_tokens).astype(np.int32)
