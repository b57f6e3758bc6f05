"""Scores a text segment by segment, with the memory carried along.

Shape letters used in this module: B rows, T segment length.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


class SegmentScorer:
    """Scores segments, each of which goes on where the one before stopped.

    The step is compiled, and ids are not held against a vocabulary.

    Args:
        score: function such as `TransformerXL.score`: of token ids, target
            ids, memory and `constants` it returns the nats and the next memory.
        memory: what it is given with the first segment.
        constants: tuple of what it is given with every segment.
        jit_compile: bool. Whether the step is compiled with XLA.
    """

    def __init__(
        self,
        score: Callable[..., tuple[Any, Any]],
        memory: Any,
        constants: tuple[Any, ...] = (),
        jit_compile: bool = True,
    ) -> None:
        self._step = tf.function(score, jit_compile=jit_compile, autograph=False)
        self._memory = memory
        self._constants = constants

    def __call__(self, token_ids: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
        """Scores the next segment.

        Args:
            token_ids: int32 array `(B, T)`.
            target_ids: int32 array `(B, T)`; position `t` is the token after
                `token_ids[:, t]`.

        Returns:
            Nats: float32 array `(B, T)`.
        """
        nll, self._memory = self._step(
            tf.constant(token_ids), tf.constant(target_ids), self._memory, *self._constants
        )
        return nll.numpy()
