"""Texts that an evaluation reads: tokens on demand, and counts of the text behind them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from txl_tf.data.prepared_dataset import PreparedDataset

ReadRange = Callable[[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationText:
    """Tokens of a text, which are read by their place, and counts of the text behind them.

    `read_tokens` and `read_document_starts` take a start and a stop, both between 0 and
    `num_tokens`. The first returns the token ids between them, the second bools that are true for
    tokens that begin a document. The counts are bytes, UTF-8 code points and words of the text of
    all tokens. `unknown_id` is the token for text outside the vocabulary, if there is one.
    """

    name: str
    num_tokens: int
    read_tokens: ReadRange
    read_document_starts: ReadRange
    num_bytes: float
    num_characters: float
    num_words: float
    tokenizer_kind: str | None = None
    unknown_id: int | None = None

    @classmethod
    def of_tokens(cls, name: str, token_ids: np.ndarray, **counts: Any) -> Self:
        """Builds a text of one document from an int vector; `counts` are the other fields."""
        return cls(
            name=name,
            num_tokens=len(token_ids),
            read_tokens=lambda start, stop: token_ids[start:stop],
            read_document_starts=lambda start, stop: np.arange(start, stop) == 0,
            **counts,
        )

    @classmethod
    def of_split(cls, dataset: PreparedDataset, split: str) -> Self:
        """Returns the text of a split, whose tokens are read from disk on demand."""
        entry = dataset.manifest.split(split)
        return cls(
            name=split,
            num_tokens=entry.tokens,
            read_tokens=functools.partial(dataset.read_tokens, split),
            read_document_starts=functools.partial(dataset.read_document_starts, split),
            num_bytes=entry.bytes,
            num_characters=entry.characters,
            num_words=entry.words,
            tokenizer_kind=dataset.manifest.tokenizer_kind,
            unknown_id=dataset.unknown_id,
        )
