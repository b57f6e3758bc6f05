"""Scores answers that may follow a long prompt, which is read once with memory.

Shape letters used in this module: B prompts, K answers of each, A tokens of an answer, P tokens
before it, T segment length, V vocabulary.
"""

import functools
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from txl_tf.errors import NonFiniteError
from txl_tf.inference.engine import InferenceEngine
from txl_tf.layers.adaptive_embedding import check_token_ids


class AnswerScores(NamedTuple):
    """Scores of answers.

    Attributes:
        nats: float64 array `(B, K)`. Of all tokens of an answer together.
        is_greedy: bool array `(B, K)`. Whether every token of an answer is the
            likeliest after those before it: greedy generation writes exactly this.
    """

    nats: np.ndarray
    is_greedy: np.ndarray


class AnswerScorer:
    """Reader of prompts with memory, and scorer of what may follow them.

    Segments end with the answers, so that the last one holds the answers and
    what is before them. All answers continue the same memory.

    Args:
        model: language model from `create_model`, with its weights.
        memory_length: optional int. Tokens to remember, 0 for none; `None` where a
            model has no such choice.
        num_rows: int. Prompts that are read side by side, `B`.
        jit_compile: optional bool. Whether XLA compiles the reading. Defaults to
            `None`: where the plan of the device says so.
    """

    def __init__(
        self,
        model: keras.Model,
        memory_length: int | None,
        num_rows: int,
        *,
        jit_compile: bool | None = None,
    ) -> None:
        choice = {"num_rows": num_rows, "jit_compile": jit_compile}
        self._engine = InferenceEngine(model, memory_length, **choice)
        self._num_rows = num_rows
        self._constants = self._engine.constants(self._engine.segment_length)
        compiled = functools.partial(
            tf.function, autograph=False, jit_compile=self._engine.plan.compile_read
        )
        self._read = compiled(self._remember)
        self._score = compiled(self._log_probs)

    def __call__(
        self, prompts: np.ndarray, answers: np.ndarray, lengths: np.ndarray
    ) -> AnswerScores:
        """Scores the answers of prompts.

        Args:
            prompts: int array `(B, P)`, where `P + A - 1` is a multiple of `T`.
            answers: int array `(B, K, A)` with any ids behind the end of an answer.
            lengths: int array `(B, K)`, from 1 to `A`.

        Returns:
            `AnswerScores`.

        Raises:
            NonFiniteError: If a score is not finite.
            ValueError: If the sizes do not fit, or an id is not in `[0, V)`.
        """
        longest, segment_length = answers.shape[2], self._engine.segment_length
        num_read = prompts.shape[1] + longest - 1
        if num_read % segment_length or not 1 <= longest <= segment_length:
            raise ValueError(
                f"`P + A - 1` must be a multiple of {segment_length}, and `A` no more than that. "
                f"Received: P={prompts.shape[1]}, A={longest}"
            )
        for name, token_ids in (("prompts", prompts), ("answers", answers)):
            check_token_ids(token_ids, self._engine.model.config.vocabulary_size, name)
        num_prompts = len(prompts)
        # The program is for a number of rows: the last batch may have fewer.
        padding = [(0, self._num_rows - num_prompts)]
        prompts = np.pad(prompts, [*padding, (0, 0)]).astype(np.int32)
        answers = np.pad(answers, [*padding, (0, 0), (0, 0)]).astype(np.int32)
        memory = self._engine.initial_memory(self._num_rows)
        last = num_read - segment_length
        for first in range(0, last, segment_length):
            segment = tf.constant(prompts[:, first : first + segment_length])
            memory = self._read(segment, memory, self._constants)
        columns = [
            self._scores_of(prompts[:, last:], answers[:, choice], memory)
            for choice in range(answers.shape[1])
        ]
        nats, is_best = (
            np.stack(each, axis=1)[:num_prompts] for each in zip(*columns, strict=True)
        )
        counts = np.arange(longest) < lengths[..., None]  # [B, K, A]
        total = np.sum(np.where(counts, nats.astype(np.float64), 0.0), axis=2)
        if not np.all(np.isfinite(total)):
            raise NonFiniteError(
                f"The loss of {np.sum(~np.isfinite(total))} answers is not finite.",
                where=f"memory length {self._engine.memory_length}",
                remedy="Analyze an earlier checkpoint.",
            )
        return AnswerScores(total, np.all(is_best | ~counts, axis=2))

    def _scores_of(
        self, prompt_end: np.ndarray, answers: np.ndarray, memory: object
    ) -> tuple[np.ndarray, np.ndarray]:
        token_ids = np.concatenate([prompt_end, answers[:, :-1]], axis=1)
        nats, is_best = self._score(
            tf.constant(token_ids), tf.constant(answers), memory, self._constants
        )
        return nats.numpy(), is_best.numpy()

    def _remember(self, token_ids, memory, constants):
        return self._engine.read(token_ids, memory, constants=constants)[1]

    def _log_probs(self, token_ids, answers, memory, constants):
        hidden, _ = self._engine.read(token_ids, memory, constants=constants)
        return target_scores(self._engine.model, hidden[:, -answers.shape[1] :], answers)


def target_scores(
    model: keras.Model, hidden: tf.Tensor, target_ids: tf.Tensor, *, checks_greedy: bool = True
) -> tuple[tf.Tensor, tf.Tensor]:
    """Scores tokens by the hidden states before them.

    Args:
        model: language model from `create_model`.
        hidden: float tensor `(B, A, D)`.
        target_ids: int32 tensor `(B, A)`.
        checks_greedy: bool. Whether the likeliest tokens are found, which takes the
            probability of every token of the vocabulary. Defaults to `True`.

    Returns:
        Tuple of the nats of each token, `(B, A)`, and whether it is the likeliest, a bool
        tensor `(B, A)`, False where that is not checked.
    """
    nats = model.negative_log_likelihood(hidden, target_ids)
    if not checks_greedy:
        return nats, tf.zeros_like(target_ids, tf.bool)
    log_probs = model.log_probs_of(hidden)  # [B, A, V]
    best = tf.argmax(log_probs, axis=2, output_type=target_ids.dtype)
    return nats, tf.equal(best, target_ids)
