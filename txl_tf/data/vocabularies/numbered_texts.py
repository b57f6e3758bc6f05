"""Splits of text whose tokens got numbers before the vocabulary was known."""

import os
from collections.abc import Iterable, Iterator

import numpy as np

from txl_tf.data.parallel.token_chunk import TokenChunk
from txl_tf.data.text_counts import TextCounts
from txl_tf.data.tokenizer import Tokenizer
from txl_tf.data.vocabularies.vocabulary_training import Progress
from txl_tf.errors import DataDamagedError


class NumberedTexts:
    """Keeps numbers in files, and reads them as token ids.

    Args:
        folder: str. A local folder for the files.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._ids = np.zeros(0, np.int32)

    def store(self, split: str, chunks: Iterable[TokenChunk], progress: Progress) -> None:
        """Writes the numbers of a split.

        Args:
            split: str. Name of the split.
            chunks: iterable of `TokenChunk`, with uint32 numbers as tokens.
            progress: function, called with the split and the bytes of text.

        Raises:
            OSError: If the file cannot be written.
        """
        with open(self._path(split), "wb") as file:
            for numbers, starts, counts in chunks:
                header = np.array([len(numbers), len(starts), *counts], np.int64)
                # Not `tofile`, which does not say when the disk is full.
                for part in (header, starts, numbers):
                    file.write(part.tobytes())
                progress(split, counts.bytes)

    def use(self, tokenizer: Tokenizer, ids: np.ndarray) -> None:
        """Says what the numbers mean.

        Args:
            tokenizer: `Tokenizer`. The tokenizer with the vocabulary.
            ids: int vector. The token id of every number.
        """
        self.tokenizer = tokenizer
        self._ids = ids

    def chunks(self, split: str) -> Iterator[TokenChunk]:
        """Reads a split.

        Args:
            split: str. Name of the split.

        Yields:
            The tokens, in order.

        Raises:
            DataDamagedError: If the file was changed.
        """
        with open(self._path(split), "rb") as file:
            while (header := np.fromfile(file, np.int64, 6)).size:
                starts = np.fromfile(file, np.int64, header[1])
                numbers = np.fromfile(file, np.uint32, header[0])
                if (len(numbers), len(starts)) != tuple(header[:2]):
                    what = "A temporary file is shorter than what was written."
                    raise DataDamagedError(what, where=file.name, remedy="Check the disk.")
                counts = TextCounts(*header[2:].tolist())
                yield TokenChunk(self._ids[numbers], starts, counts)

    def _path(self, split: str) -> str:
        return os.path.join(self._folder, f"{split}.numbers")
