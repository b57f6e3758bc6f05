"""Checked arguments of a call on texts: the texts, and the end of a written row."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from txl_tf.config.base import DEFAULT_NEW_TOKENS

Pooling = Literal["tokens", "segments", "last", "mean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
"""Reductions of the features of tokens to features of a text."""


def checked_texts(texts: Any, argument: str) -> list[str]:
    """Returns texts as a list; TypeError for other types, ValueError for an empty list."""
    if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        kinds = type(texts).__name__
        if isinstance(texts, Sequence):
            kinds = f"{kinds} of {', '.join(sorted({type(each).__name__ for each in texts}))}"
        raise TypeError(f"`{argument}` must be a str or a list of str. Received: {kinds}")
    if not texts:
        raise ValueError(f"`{argument}` must have at least one text. Received: {texts!r}")
    return list(texts)


def new_tokens(lengths: Sequence[int], max_length: int | None, max_tokens: int | None) -> list[int]:
    """Returns the most new tokens after prompts of these lengths.

    `max_length` includes the prompt. Raises ValueError if both limits are given, or nothing can
    be written.
    """
    if max_length is not None and max_tokens is not None:
        raise ValueError(
            "`max_length` counts the prompt and `max_tokens` does not; give one of them. "
            f"Received: max_length={max_length}, max_tokens={max_tokens}"
        )
    if max_length is None:
        count = DEFAULT_NEW_TOKENS if max_tokens is None else max_tokens
        if count < 1:
            raise ValueError(f"`max_tokens` must be positive. Received: max_tokens={count}")
        return [count] * len(lengths)
    if max_length <= min(lengths):
        raise ValueError(
            "`max_length` must be larger than the shortest prompt. "
            f"Received: max_length={max_length} for prompts of {list(lengths)} tokens"
        )
    return [max(0, max_length - length) for length in lengths]


def until(row: np.ndarray, stop_token_ids: tuple[int, ...]) -> np.ndarray:
    """Returns the tokens of a row before -1 or a stop token."""
    is_end = (row < 0) | np.isin(row, np.array(stop_token_ids, np.int32))
    return row[: int(np.argmax(is_end))] if is_end.any() else row
