"""What every tokenizer offers to preparation, evaluation and generation."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np


class Tokenizer(Protocol):
    """The interface of a tokenizer.

    A tokenizer turns bytes into token ids and back. Its `fingerprint` covers
    everything that decides the ids, so that a data set, a checkpoint and an
    export can be held against each other.
    """

    kind: str
    vocabulary_size: int
    token_dtype: np.dtype

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of what defines the tokenizer."""

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files that a data set keeps of it."""

    def encode(self, text: bytes) -> np.ndarray:
        """Turns bytes into a vector of token ids of type `token_dtype`."""

    def decode(self, token_ids: np.ndarray) -> bytes:
        """Turns token ids back into bytes."""
