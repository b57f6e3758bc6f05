"""Scores every token of a split, with any segment and memory length."""

import time
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.evaluation_result import EvaluationResult
from txl_tf.evaluation.evaluation_rows import EvaluationRows
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


class Evaluator:
    """A model for evaluation, and the loop that reads a split with it.

    The model has its own copy of the weights and its own memory, so that an
    evaluation never disturbs a training run.

    Args:
        model_config: `ModelConfig` of the trained model.
        evaluation_config: `EvaluationConfig`; what it leaves open is taken
            from the model.
        dtype_policy: str. Keras dtype policy.
        jit_compile: bool. Whether the step is compiled with XLA.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        evaluation_config: EvaluationConfig,
        dtype_policy: str = "float32",
        jit_compile: bool = True,
    ) -> None:
        names = (
            "segment_length",
            "memory_length",
            "clamp_length",
            "same_length",
            "same_length_keys",
        )
        changes = {
            name: value for name in names if (value := getattr(evaluation_config, name)) is not None
        }
        self.config = model_config.replace(**changes)
        self._batch_size = evaluation_config.batch_size
        self.model = TransformerXL(self.config, dtype=dtype_policy)
        self._step = tf.function(self.score_batch, jit_compile=jit_compile, autograph=False)

    def load_weights_of(self, model: TransformerXL) -> None:
        """Copies the weights of a model of the same sizes.

        Args:
            model: `TransformerXL`.
        """
        self.load_arrays({variable.path: variable.numpy() for variable in model.weights})

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes weights by their path.

        Args:
            arrays: dict of variable path to array.
        """
        for variable in self.model.weights:
            variable.assign(arrays[variable.path])

    def evaluate(
        self,
        split: str,
        num_tokens: int,
        read_tokens: Callable[[int, int], np.ndarray],
        *,
        bytes_per_token: float,
        step: int,
        track: Callable[[Iterable, int], Iterable] | None = None,
    ) -> EvaluationResult:
        """Scores a split, its tail included.

        Args:
            split: str. Name of the split.
            num_tokens: int. Tokens in it.
            read_tokens: function of a start and a stop that returns the
                tokens between them.
            bytes_per_token: float. Bytes of text per token of this split.
            step: int. Training steps of the weights.
            track: optional function that passes the batches on and shows
                progress; it is given them and their number.

        Returns:
            An `EvaluationResult`.

        Raises:
            NonFiniteError: If the total is not finite.
        """
        begin = time.perf_counter()
        rows = EvaluationRows(num_tokens, self._batch_size, self.config.segment_length)
        memory = self.model.initial_memory(rows.batch_size)
        total_nats, num_scored = 0.0, 0
        batches = rows.batches(read_tokens)
        for batch in batches if track is None else track(batches, rows.num_segments):
            nats, memory = self._step(*map(tf.constant, batch), memory)
            total_nats += float(nats)
            num_scored += int(batch.is_scored.sum())
        if not np.isfinite(total_nats):
            raise NonFiniteError(
                f"The loss of the split {split} is not finite: {total_nats}.",
                where=f"weights of step {step}",
                remedy="Evaluate an earlier checkpoint.",
            )
        return EvaluationResult(
            split=split,
            step=step,
            total_nats=total_nats,
            num_tokens=num_scored,
            num_bytes=num_scored * bytes_per_token,
            segment_length=self.config.segment_length,
            memory_length=self.config.memory_length,
            clamp_length=self.config.clamp_length,
            same_length=self.config.same_length,
            batch_size=rows.batch_size,
            seconds=time.perf_counter() - begin,
        )

    def score_batch(
        self, token_ids: tf.Tensor, target_ids: tf.Tensor, is_scored: tf.Tensor, memory: Memory
    ) -> tuple[tf.Tensor, Memory]:
        """Scores one segment of every row: the step that `evaluate` repeats.

        Args:
            token_ids: int32 tensor `(B, T)`.
            target_ids: int32 tensor `(B, T)`.
            is_scored: bool tensor `(B, T)`. False for padding.
            memory: `Memory` of the segments before.

        Returns:
            Tuple of the sum of the nats, a float64 scalar tensor, and the next
            `Memory`.
        """
        nll, memory = self.model.score(token_ids, target_ids, memory)
        scored = tf.where(is_scored, tf.cast(nll, tf.float64), tf.zeros([], tf.float64))
        return tf.reduce_sum(scored), memory
