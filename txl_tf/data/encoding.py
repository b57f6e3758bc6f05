"""Encoding of text into token ids or word numbers, one batch per worker process."""

import collections
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from txl_tf.data.text import Document, DocumentPiece, Splits, TextCounts, work_batches
from txl_tf.data.tokenizers import load_tokenizer
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, Tokenizer
from txl_tf.data.tokenizers.word_splitting import WordRule
from txl_tf.data.tokenizers.word_tokenizer import WordVocabularyBuilder
from txl_tf.data.workers import OrderedWorkers


class EncodedBatch(NamedTuple):
    """Tokens, document starts and text counts of consecutive pieces of a split.

    `document_starts` are int64 indices into `token_ids`; one past the end stands for the next
    batch's first token.
    """

    token_ids: np.ndarray
    document_starts: np.ndarray
    counts: TextCounts


class BatchEncoder:
    """Encoder of text batches; only the tokenizer's kind and vocabulary are pickled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"kind": self._tokenizer.kind, "files": dict(self._tokenizer.vocabulary_files)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._tokenizer = load_tokenizer(state["kind"], state["files"])

    def __call__(self, pieces: Sequence[DocumentPiece]) -> EncodedBatch:
        """Encodes at least one piece; raises DataDamagedError for text that cannot be encoded."""
        parts = [located(self._encode, piece) for piece in pieces]
        starts = document_starts(pieces, [len(part) for part in parts])
        token_ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return EncodedBatch(token_ids, starts, TextCounts.of(pieces))

    def _encode(self, piece: DocumentPiece) -> np.ndarray:
        text = line_text(piece) if self._tokenizer.reads_lines else piece.text
        return self._tokenizer.encode_piece(text, piece.begins_line, piece.ends_document)


def line_text(piece: DocumentPiece) -> bytes:
    """Returns a piece without the LF of a CR LF that the previous piece ended with."""
    return piece.text[1:] if piece.splits_line_end else piece.text


def document_starts(pieces: Sequence[DocumentPiece], num_tokens: Sequence[int]) -> np.ndarray:
    """Returns the int64 indices of the tokens that begin documents, from the tokens per piece."""
    places = np.cumsum([0, *num_tokens[:-1]], dtype=np.int64)
    return places[[piece.begins_document for piece in pieces]]


def located(function: Callable[[DocumentPiece], Any], piece: DocumentPiece) -> Any:
    """Calls a function of a piece; converts InvalidTextError to DataDamagedError with the place."""
    try:
        return function(piece)
    except InvalidTextError as error:
        skipped = int(piece.splits_line_end)
        error = error.shifted(piece.offset_bytes + skipped, piece.offset_lines + skipped)
        where = f"split {piece.split}, document {piece.document}"
        remedy = "Correct the text, or prepare it with the byte tokenizer."
        raise error.damaged(where, remedy) from error


class EncodedSplits:
    """Splits of a text, encoded by workers with a given tokenizer."""

    def __init__(self, splits: Splits, tokenizer: Tokenizer, workers: OrderedWorkers) -> None:
        self.tokenizer = tokenizer
        self._splits = splits
        self._workers = workers
        self._encoding = BatchEncoder(tokenizer)

    def batches(self, split: str) -> Iterator[EncodedBatch]:
        """Encodes a split; raises DataDamagedError for text that cannot be encoded."""
        return self._workers.map(self._encoding, work_batches(split, self._splits[split]))


class TokenSource(Protocol):
    """Interface of encoded splits: batches of tokens and their tokenizer."""

    tokenizer: Tokenizer

    def batches(self, split: str) -> Iterator[EncodedBatch]:
        """Yields the tokens of a split, in order."""


_MAX_WORDS = 1 << 20


class _NumberedBatch(NamedTuple):
    table: tuple[int, int]
    new_words: list[bytes]
    tokens: EncodedBatch


class WorkerWordCounter:
    """Word numbering of one worker: each new word gets the next number.

    Beyond `max_words` the worker starts again at 0, so that workers do not each hold all words.
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

    def __call__(self, pieces: Sequence[DocumentPiece]) -> _NumberedBatch:
        """Numbers the words of a batch; returns their table, its new words, and the numbers.

        Raises DataDamagedError if the text is not UTF-8.
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
        return _NumberedBatch(
            (os.getpid(), self._num_tables),
            list(newest_first)[::-1],
            EncodedBatch(numbers, document_starts(pieces, lengths), TextCounts.of(pieces)),
        )

    def _split(self, piece: DocumentPiece) -> list[bytes]:
        return self._rule.split(line_text(piece), piece.begins_line, piece.ends_document)

    def _forget(self) -> None:
        self._num_tables += 1
        self._numbers: dict[bytes, int] = collections.defaultdict(itertools.count().__next__)


class ParallelWordCounter:
    """Word numbers merged from all workers, equal to the numbers of one worker.

    A worker lists the words of each batch that are new to it. Batches are sent and merged in the
    order of the text, so a word that no merged batch has listed is new to every worker.
    """

    def __init__(self, rule: WordRule) -> None:
        self._rule = rule
        self.builder = WordVocabularyBuilder(rule)
        """All words that were counted so far."""

    def batches(
        self, split: str, documents: Iterable[Document], workers: OrderedWorkers
    ) -> Iterator[EncodedBatch]:
        """Counts the words of a split; yields batches with uint32 word numbers as tokens."""
        tables: dict[int, tuple[int, np.ndarray]] = {}
        # A new function for every split: its copies in the workers know no words.
        numbering = WorkerWordCounter(self._rule)
        for (process, number), new_words, tokens in workers.map(
            numbering, work_batches(split, documents)
        ):
            known, table = tables.get(process, (number, np.zeros(0, np.uint32)))
            if known != number:
                table = np.zeros(0, np.uint32)
            table = np.concatenate([table, self.builder.numbers_of(new_words)])
            tables[process] = number, table
            numbers = table[tokens.token_ids]
            self.builder.add(np.bincount(numbers))
            yield tokens._replace(token_ids=numbers)
