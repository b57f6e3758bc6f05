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

    Args:
        token_ids: int vector. The tokens.
        document_starts: int64 vector. The places in `token_ids` where documents
            begin; one past the last for one that begins with the next token.
        counts: `TextCounts`. Counts of the text.
    """

    token_ids: np.ndarray
    document_starts: np.ndarray
    counts: TextCounts


class BatchEncoder:
    """Encoder of text batches; each piece can be encoded on its own.

    To another process only kind and vocabulary are sent.

    Args:
        tokenizer: `Tokenizer`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"kind": self._tokenizer.kind, "files": dict(self._tokenizer.vocabulary_files)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._tokenizer = load_tokenizer(state["kind"], state["files"])

    def __call__(self, pieces: Sequence[DocumentPiece]) -> EncodedBatch:
        """Encodes a batch.

        Args:
            pieces: sequence of `DocumentPiece`, at least one.

        Raises:
            DataDamagedError: If the text is not one that the tokenizer takes.
        """
        parts = [located(self._encode, piece) for piece in pieces]
        starts = document_starts(pieces, [len(part) for part in parts])
        token_ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return EncodedBatch(token_ids, starts, TextCounts.of(pieces))

    def _encode(self, piece: DocumentPiece) -> np.ndarray:
        text = line_text(piece) if self._tokenizer.reads_lines else piece.text
        return self._tokenizer.encode_piece(text, piece.begins_line, piece.ends_document)


def line_text(piece: DocumentPiece) -> bytes:
    """Returns a piece without the part of a line end that the previous piece contained."""
    return piece.text[1:] if piece.splits_line_end else piece.text


def document_starts(pieces: Sequence[DocumentPiece], num_tokens: Sequence[int]) -> np.ndarray:
    """Returns the places of the tokens that begin documents.

    Args:
        pieces: sequence of `DocumentPiece`.
        num_tokens: sequence of int. Tokens of every piece.

    Returns:
        int64 vector.
    """
    places = np.cumsum([0, *num_tokens[:-1]], dtype=np.int64)
    return places[[piece.begins_document for piece in pieces]]


def located(function: Callable[[DocumentPiece], Any], piece: DocumentPiece) -> Any:
    """Calls a function of a piece, and says of invalid text where it is.

    Args:
        function: function of a `DocumentPiece`.
        piece: `DocumentPiece`.

    Raises:
        DataDamagedError: If the text is not one that the tokenizer takes.
    """
    try:
        return function(piece)
    except InvalidTextError as error:
        skipped = int(piece.splits_line_end)
        error = error.shifted(piece.offset_bytes + skipped, piece.offset_lines + skipped)
        where = f"split {piece.split}, document {piece.document}"
        remedy = "Correct the text, or prepare it with the byte tokenizer."
        raise error.damaged(where, remedy) from error


class EncodedSplits:
    """Splits of a text, encoded with a given tokenizer.

    Args:
        splits: dict of split name to documents.
        tokenizer: `Tokenizer`.
        workers: `OrderedWorkers`. Who encodes.
    """

    def __init__(self, splits: Splits, tokenizer: Tokenizer, workers: OrderedWorkers) -> None:
        self.tokenizer = tokenizer
        self._splits = splits
        self._workers = workers
        self._encoding = BatchEncoder(tokenizer)

    def batches(self, split: str) -> Iterator[EncodedBatch]:
        """Encodes a split.

        Raises:
            DataDamagedError: If the text is not one that the tokenizer takes.
        """
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

    def __call__(self, pieces: Sequence[DocumentPiece]) -> _NumberedBatch:
        """Numbers the words of a batch.

        Args:
            pieces: sequence of `DocumentPiece`, at least one.

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
    """Word numbers merged from all workers.

    A worker names the words of a batch that are new to it, in order. Batches are
    merged in the order of the text, and a worker gets them in that order. So a
    word that no merged batch has named is new to all of them, and the numbers
    are those of one worker.

    Args:
        rule: `WordRule`. How text is split.
    """

    def __init__(self, rule: WordRule) -> None:
        self._rule = rule
        self.builder = WordVocabularyBuilder(rule)
        """All words that were counted so far."""

    def batches(
        self, split: str, documents: Iterable[Document], workers: OrderedWorkers
    ) -> Iterator[EncodedBatch]:
        """Numbers and counts the words of a split.

        Yields:
            Batches with uint32 numbers, which are no token ids yet.
        """
        tables: dict[int, tuple[int, np.ndarray]] = {}
        # A fresh function for every split, whose workers know no words.
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
