"""Word counting by several worker processes in one pass, with stable numbers."""

import collections
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from txl_tf.data.encoding import TokenChunk, document_starts, line_text, located
from txl_tf.data.text import Document, TextCounts, TextPiece, text_chunks
from txl_tf.data.tokenizers.word_splitting import WordRule
from txl_tf.data.tokenizers.word_vocabulary import WordVocabularyBuilder
from txl_tf.data.workers import OrderedWorkers

_MAX_WORDS = 1 << 20


class _NumberedChunk(NamedTuple):
    table: tuple[int, int]
    new_words: list[bytes]
    tokens: TokenChunk


class WordNumbering:
    """Word counter of one worker: the next number for each word that is new to it.

    Args:
        rule: `WordRule`. How text is split.
        max_words: int. With more words a worker starts again at 0, so that many
            workers do not all hold all words. Defaults to `2**20`.
    """

    def __init__(self, rule: WordRule, max_words: int = _MAX_WORDS) -> None:
        self._rule = rule
        self._max_words = max_words
        self._num_tables = 0
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {"rule": self._rule, "max_words": self._max_words}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, pieces: Sequence[TextPiece]) -> _NumberedChunk:
        """Numbers the words of a chunk.

        Args:
            pieces: sequence of `TextPiece`, at least one.

        Returns:
            The table that the numbers are of, the words that are new in it, and
            the numbers in the place of tokens.

        Raises:
            DataDamagedError: If the text is not UTF-8.
        """
        if len(self._numbers) > self._max_words:
            self._forget()
        known = len(self._numbers)
        words: list[bytes] = []
        lengths = []
        for piece in pieces:
            found = located(self._split, piece)
            words += found
            lengths.append(len(found))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.uint32, len(words))
        newest_first = itertools.islice(reversed(self._numbers), len(self._numbers) - known)
        return _NumberedChunk(
            (os.getpid(), self._num_tables),
            list(newest_first)[::-1],
            TokenChunk(numbers, document_starts(pieces, lengths), TextCounts.of(pieces)),
        )

    def _split(self, piece: TextPiece) -> list[bytes]:
        return self._rule.split(line_text(piece), piece.begins_line, piece.ends_document)

    def _forget(self) -> None:
        self._num_tables += 1
        self._numbers: dict[bytes, int] = collections.defaultdict(itertools.count().__next__)


class WordNumbers:
    """Word numbers merged from all workers.

    A worker names the words of a chunk that are new to it, in order. Chunks are
    merged in the order of the text, and a worker gets them in that order. So a
    word that no merged chunk has named is new to all of them, and the numbers
    are those of one worker.

    Args:
        rule: `WordRule`. How text is split.
    """

    def __init__(self, rule: WordRule) -> None:
        self._rule = rule
        self._numbers: dict[bytes, int] = collections.defaultdict(itertools.count().__next__)
        self._counts = np.zeros(1 << 16, np.int64)

    @property
    def words(self) -> list[bytes]:
        """The words by number."""
        return list(self._numbers)

    def chunks(
        self, split: str, documents: Iterable[Document], workers: OrderedWorkers
    ) -> Iterator[TokenChunk]:
        """Numbers and counts the words of a split.

        Args:
            split: str. Name of the split.
            documents: iterable of documents.
            workers: `OrderedWorkers`. Who does the work.

        Yields:
            Chunks with uint32 numbers, which are no token ids yet.
        """
        tables: dict[int, tuple[int, np.ndarray]] = {}
        # A fresh function for every split, whose workers know no words.
        numbering = WordNumbering(self._rule)
        for (process, number), new_words, tokens in workers.map(
            numbering, text_chunks(split, documents)
        ):
            known, table = tables.get(process, (number, np.zeros(0, np.uint32)))
            if known != number:
                table = np.zeros(0, np.uint32)
            new_numbers = map(self._numbers.__getitem__, new_words)
            added = np.fromiter(new_numbers, np.uint32, len(new_words))
            table = np.concatenate([table, added])
            tables[process] = number, table
            numbers = table[tokens.token_ids]
            self._count(numbers)
            yield tokens._replace(token_ids=numbers)

    def vocabulary_builder(self) -> WordVocabularyBuilder:
        """Returns a builder with all words that were counted so far."""
        builder = WordVocabularyBuilder(self._rule)
        builder.merge(self.words, self._counts[: len(self._numbers)])
        return builder

    def _count(self, numbers: np.ndarray) -> None:
        if len(self._numbers) > len(self._counts):
            grown = np.zeros(2 * len(self._numbers), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        counts = np.bincount(numbers)
        self._counts[: len(counts)] += counts
