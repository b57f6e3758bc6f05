"""Continuation of prompts in one call.

Shape letters used in this module: R rows, P prompt length, S tokens to write,
W beams of a row, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from txl_tf import samplers
from txl_tf.config.base import DEFAULT_NEW_TOKENS
from txl_tf.generation.decoding import Sampler
from txl_tf.generation.session import Callback, GenerationSession
from txl_tf.inference.memory import KeyValueMemory
from txl_tf.models.memory import Memory
from txl_tf.samplers import BeamSampler

FEWEST_COMPILED_TOKENS = 300
"""Fewer tokens take less time than the compilation by XLA."""


def generate(
    model: keras.Model,
    prompt_ids: np.ndarray | Sequence[np.ndarray],
    *,
    max_tokens: int = DEFAULT_NEW_TOKENS,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | Sequence[int] | None = None,
    sampler: Sampler | BeamSampler | str | None = None,
    memory: Any = None,
    memory_length: int | None = None,
    repetition_penalty: float = 1.0,
    stop_token_ids: Sequence[int] = (),
    excluded_token_ids: Sequence[int] = (),
    callback: Callback | None = None,
    jit_compile: bool | None = None,
) -> tuple[np.ndarray, Any]:
    """Continues prompts.

    For more than one call with a model, a `GenerationSession` compiles once.

    Args:
        model: as for `GenerationSession`.
        prompt_ids: int array `(R, P)`, or a sequence of `R` int vectors that
            may differ in length; at least one token in every row.
        max_tokens: int. `S`, the most to write after the prompt. Defaults to `128`.
        temperature: optional float, see `RandomSampler`. Defaults to `1`.
        top_k: optional int, see `RandomSampler`. Defaults to `0`, all tokens.
        top_p: optional float, see `RandomSampler`. Defaults to `0.9`.
        min_p: optional float, see `RandomSampler`. Defaults to `0`, all tokens.
        seed: optional int, or one for each row, see `GenerationSession`. Defaults to
            `None`: a new one.
        sampler: optional name or object of `txl_tf.samplers`, or a function of logits `(R, V)`
            and seeds `(R, 2)` that returns token ids `(R,)`. It replaces the four settings of
            `RandomSampler`.
        memory: optional memory of the text before the prompt, from the model or from this
            function.
        memory_length: optional int. Tokens to remember, if not the model's.
        repetition_penalty: float, at least 1. See `RepetitionPenalty`.
        stop_token_ids: ints. A row ends with the first of them.
        excluded_token_ids: ints. They are never written.
        callback: optional function, called with the tokens `(R,)` of each position once they are
            written.
        jit_compile: optional bool. If `True`, XLA compiles the work done for every token.
            Defaults to `None`: from a few hundred tokens on, if the execution plan of the device
            compiles.

    Returns:
        Tuple of an int32 array `(R, S)`, without the prompt, -1 where a row had ended, and the
        memory after the last token but one. To continue, pass this memory and the last token as
        the prompt. With a `BeamSampler` that returns all beams, the array is `(R, W, S)`, and
        memory is of the best.

    Raises:
        ValueError: If a prompt is empty, an id or a setting is out of range, or `max_tokens`
            leaves nothing to write.
    """
    if jit_compile is None and max_tokens < FEWEST_COMPILED_TOKENS:
        jit_compile = False
    session = GenerationSession(
        model,
        samplers.choose(sampler, temperature, top_k, top_p, min_p),
        num_rows=max(1, len(prompt_ids)),
        seed=seed,
        memory_length=_length_of(memory) if memory_length is None else memory_length,
        memory=memory,
        repetition_penalty=repetition_penalty,
        stop_token_ids=stop_token_ids,
        excluded_token_ids=excluded_token_ids,
        jit_compile=jit_compile,
    )
    written = session.write(prompt_ids, max_tokens=max_tokens, callback=callback)
    return written, session.memory


def _length_of(memory: Any) -> int | None:
    if isinstance(memory, KeyValueMemory):
        return memory.memory_length
    return memory.states[0].shape[1] if isinstance(memory, Memory) else None
