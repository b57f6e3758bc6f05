"""Numbers words in the order of first sight, with any number of workers."""

import collections
import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from txl_tf.data.document import Document
from txl_tf.data.parallel.ordered_workers import OrderedWorkers
from txl_tf.data.parallel.text_chunks import text_chunks
from txl_tf.data.parallel.token_chunk import TokenChunk
from txl_tf.data.tokenizers.word_rule import WordRule
from txl_tf.data.tokenizers.word_vocabulary_builder import WordVocabularyBuilder
from txl_tf.data.vocabularies.word_numbering import WordNumbering


class WordNumbers:
    """Puts together what workers number on their own.

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
