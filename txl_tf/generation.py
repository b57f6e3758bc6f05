"""Writes text token by token, with the memory carried along.

Shape letters used in this module: B rows, P prompt length, V vocabulary.
"""

from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL

Sampler = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def generate(
    model: TransformerXL,
    prompt_ids: np.ndarray,
    *,
    num_tokens: int,
    sampler: Sampler,
    seed: int = 0,
    memory: Memory | None = None,
) -> tuple[np.ndarray, Memory]:
    """Continues prompts.

    Args:
        model: `TransformerXL`.
        prompt_ids: int array `(B, P)` with at least one token in every row.
        num_tokens: int. Tokens to write after the prompt.
        sampler: function of logits `(B, V)` and a seed that returns token ids
            `(B,)`, such as `GreedySampler()`.
        seed: int. The same seed writes the same text.
        memory: optional `Memory` of what came before the prompt.

    Returns:
        Tuple of an int32 array `(B, num_tokens)`, without the prompt, and the
        `Memory` after the last token but one: what is needed to go on with
        the last token as the prompt.

    Raises:
        ValueError: If the prompt is empty, an id is out of range, or there is
            nothing to write.
    """
    if num_tokens < 1:
        raise ValueError(f"`num_tokens` must be positive. Received: num_tokens={num_tokens}")
    stream = TokenStream(model, prompt_ids, sampler=sampler, seed=seed, memory=memory)
    columns = [column for _, column in zip(range(num_tokens), stream, strict=False)]
    return np.stack(columns, axis=1), stream.memory


class TokenStream:
    """An endless iterator over the next tokens, one per row at a time.

    Args:
        model: `TransformerXL`.
        prompt_ids: int array `(B, P)`.
        sampler: see `generate`.
        seed: int.
        memory: optional `Memory` of what came before the prompt.

    Attributes:
        memory: `Memory` after the tokens that were read so far, the newest
            token not included.
    """

    def __init__(
        self,
        model: TransformerXL,
        prompt_ids: np.ndarray,
        *,
        sampler: Sampler,
        seed: int = 0,
        memory: Memory | None = None,
    ) -> None:
        prompt_ids = np.asarray(prompt_ids)
        _check_prompt(prompt_ids, model.config.vocabulary_size)
        self._model = model
        self._sampler = sampler
        self._seed = seed
        self._step = tf.function(self._next, autograph=False, reduce_retracing=True)
        self.memory = model.initial_memory(len(prompt_ids)) if memory is None else memory
        self._pending = tf.constant(prompt_ids, tf.int32)
        self._count = 0
        self._read_all_but_last_segment()

    def __iter__(self) -> Iterator[np.ndarray]:
        return self

    def __next__(self) -> np.ndarray:
        seed = tf.constant([self._seed, self._count], tf.int32)
        token_ids, self.memory = self._step(self._pending, self.memory, seed)
        self._pending = token_ids[:, None]
        self._count += 1
        return token_ids.numpy()

    def _next(
        self, token_ids: tf.Tensor, memory: Memory, seed: tf.Tensor
    ) -> tuple[tf.Tensor, Memory]:
        log_probs, memory = self._model.log_probs(token_ids, memory)
        return self._sampler(log_probs[:, -1], seed), memory

    def _read_all_but_last_segment(self) -> None:
        """Attention costs the square of what is read at once."""
        length = self._model.config.segment_length
        while self._pending.shape[1] > length:
            _, self.memory = self._model(self._pending[:, :length], self.memory)
            self._pending = self._pending[:, length:]


def _check_prompt(prompt_ids: np.ndarray, vocabulary_size: int) -> None:
    if prompt_ids.ndim != 2 or 0 in prompt_ids.shape:
        raise ValueError(
            "`prompt_ids` must have two axes and at least one token in every row. "
            f"Received: shape={prompt_ids.shape}"
        )
    if prompt_ids.min() < 0 or prompt_ids.max() >= vocabulary_size:
        raise ValueError(
            f"`prompt_ids` must be in [0, {vocabulary_size}). "
            f"Received: from {prompt_ids.min()} to {prompt_ids.max()}"
        )
