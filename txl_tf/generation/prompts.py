"""Prompts: checked, and read into a memory whatever their lengths.

Shape letters used in this module: B rows of memory, R rows, P prompt length,
T tokens of a piece.
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.inference.engine import InferenceEngine
from txl_tf.layers.adaptive_embedding import check_token_ids


def prompt_rows(prompt_ids: Any, num_rows: int, vocabulary_size: int) -> list[np.ndarray]:
    """Converts prompts to vectors of token ids.

    Args:
        prompt_ids: int array `(R, P)`, or a sequence of `R` int vectors.
        num_rows: int. `R`.
        vocabulary_size: int. `V`.

    Returns:
        List of `R` int32 vectors with at least one token each.

    Raises:
        ValueError: If they are not that.
    """
    rows = [np.asarray(row) for row in prompt_ids]
    if len(rows) != num_rows or any(row.ndim != 1 or not row.size for row in rows):
        raise ValueError(
            f"`prompt_ids` must have {num_rows} rows and at least one token in every row. "
            f"Received: shapes={[row.shape for row in rows]}"
        )
    for row in rows:
        check_token_ids(row, vocabulary_size, "prompt_ids")
    return [row.astype(np.int32) for row in rows]


class PromptReader:
    """Reads texts that may end at different places, in few programs.

    Args:
        engine: `InferenceEngine`.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine
        self._segment_length = engine.model.config.segment_length
        self._read = tf.function(self._memory_after, autograph=False)

    def _memory_after(self, token_ids, memory, lengths=None, constants=None):
        _, memory = self._engine.read(token_ids, memory, lengths=lengths, constants=constants)
        return memory

    def __call__(self, rows: list[np.ndarray], memory: Any) -> Any:
        """Reads texts.

        Args:
            rows: list of `B` int vectors, any of which may be empty.
            memory: memory of what came before.

        Returns:
            The next memory.
        """
        if not self._engine.keeps_states:
            return self._read_padded(rows, memory)
        if len({len(row) for row in rows}) == 1:
            return self._read_even(np.stack(rows), memory)
        alone = [
            self._read_even(
                row[None], tf.nest.map_structure(lambda each, b=b: each[b : b + 1], memory)
            )
            for b, row in enumerate(rows)
        ]
        return tf.nest.map_structure(lambda *each: tf.concat(each, axis=0), *alone)

    def _read_padded(self, rows: list[np.ndarray], memory: Any) -> Any:
        constants = functools.lru_cache(maxsize=1)(self._engine.constants)
        while any(len(row) for row in rows):
            longest = max(len(row) for row in rows)
            length = _piece_length(longest, self._segment_length)
            token_ids, lengths = _padded(rows, length)
            memory = self._read(
                tf.constant(token_ids),
                memory,
                tf.constant(common_length(lengths), tf.int32),
                constants(length),
            )
            rows = [row[length:] for row in rows]
        return memory

    def _read_even(self, token_ids: np.ndarray, memory: Any) -> Any:
        length = self._segment_length
        for start in range(0, token_ids.shape[1], length):
            piece = tf.constant(token_ids[:, start : start + length], tf.int32)
            memory = self._read(piece, memory)
        return memory


def _piece_length(num_tokens: int, segment_length: int) -> int:
    """Returns how many of the remaining tokens are read at once.

    `segment_length`, or the smallest power of 2 that is enough: every length is
    one more program to compile, so there are few of them.
    """
    if num_tokens >= segment_length:
        return segment_length
    return min(segment_length, 1 << (num_tokens - 1).bit_length())


def _padded(rows: list[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """The beginnings of rows `(B, T)` with zeros behind the short ones, and lengths `(B,)`."""
    token_ids = np.zeros((len(rows), length), np.int32)
    for padded_row, row in zip(token_ids, rows, strict=True):
        padded_row[: len(row)] = row[:length]
    return token_ids, np.array([min(len(row), length) for row in rows], np.int32)


def common_length(lengths: np.ndarray) -> np.ndarray:
    """Returns a scalar if all lengths are equal, which is faster."""
    lengths = np.asarray(lengths, np.int32)
    return lengths[0] if (lengths == lengths[0]).all() else lengths
