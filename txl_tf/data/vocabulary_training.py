"""Vocabulary training for each tokenizer: characters, words, WordPiece, SentencePiece."""

import abc
import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np

from txl_tf.data.encoding import (
    EncodedBatch,
    EncodedSplits,
    ParallelWordCounter,
    TokenSource,
    located,
)
from txl_tf.data.text import DocumentPiece, Splits, TextCounts, work_batches
from txl_tf.data.tokenizers.character_tokenizer import (
    CharacterTokenizer,
    CharacterVocabularyBuilder,
)
from txl_tf.data.tokenizers.sentence_piece_tokenizer import (
    SentencePieceTokenizer,
    train_sentence_piece,
)
from txl_tf.data.tokenizers.tokenizer import Tokenizer, decode_utf8
from txl_tf.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer, train_word_pieces
from txl_tf.data.tokenizers.word_splitting import LINE_MARK, WordRule
from txl_tf.data.tokenizers.word_tokenizer import WordTokenizer
from txl_tf.data.workers import OrderedWorkers
from txl_tf.errors import DataDamagedError

Progress = Callable[[str, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyTraining(abc.ABC):
    """Base class of vocabulary training on `counted_splits`; reads the text at most twice."""

    counted_splits: tuple[str, ...] = ("train",)
    uses_tensorflow: ClassVar[bool] = False
    """True if encoding with the vocabulary uses TensorFlow."""

    @abc.abstractmethod
    def train(self, splits: Splits, workers: OrderedWorkers, progress: Progress) -> Tokenizer:
        """Builds the tokenizer from documents that can be iterated more than once.

        `progress` gets the split and the bytes read since the last call. Raises DataDamagedError if
        the text cannot give this vocabulary.
        """

    def tokenize(
        self, splits: Splits, workers: OrderedWorkers, scratch_folder: str, progress: Progress
    ) -> TokenSource:
        """Builds the tokenizer and tokenizes the text; `scratch_folder` holds what exceeds memory.

        Raises DataDamagedError if the text cannot give this vocabulary.
        """
        return EncodedSplits(splits, self.train(splits, workers, progress), workers)

    def counted(self, splits: Splits) -> list[str]:
        """Returns the names of the counted splits that exist, in the order of the text."""
        return [name for name in splits if name in self.counted_splits]


@contextlib.contextmanager
def _vocabulary_errors() -> Iterator[None]:
    """Converts the ValueError of a text that cannot give the requested vocabulary."""
    try:
        yield
    except ValueError as error:
        what = f"The vocabulary cannot be made of the text: {' '.join(str(error).split())[:300]}"
        remedy = "Give more text, or another --vocabulary-size."
        raise DataDamagedError(what, remedy=remedy) from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class CharacterTraining(VocabularyTraining):
    """Training of a character vocabulary; see `CharacterVocabularyBuilder.build`.

    Args:
        min_frequency: int. Defaults to `0`.
        vocabulary_size: optional int. Defaults to all characters.
        unknown_token: optional str. Defaults to `None`.
    """

    min_frequency: int = 0
    vocabulary_size: int | None = None
    unknown_token: str | None = None

    def train(
        self, splits: Splits, workers: OrderedWorkers, progress: Progress
    ) -> CharacterTokenizer:
        builder = CharacterVocabularyBuilder()
        for name in self.counted(splits):
            for found in workers.map(_count, work_batches(name, splits[name])):
                characters, counts, num_bytes = found
                builder.merge(characters, counts)
                progress(name, num_bytes)
        with _vocabulary_errors():
            return builder.build(
                min_frequency=self.min_frequency,
                vocabulary_size=self.vocabulary_size,
                unknown_token=self.unknown_token,
            )


def _count(pieces: Sequence[DocumentPiece]) -> tuple[list[str], np.ndarray, int]:
    builder = CharacterVocabularyBuilder()
    for piece in pieces:
        located(lambda piece: builder.count(piece.text), piece)
    return builder.characters, builder.counts, sum(len(piece.text) for piece in pieces)


class SpilledIds:
    """Provisional word numbers in local files, read as token ids."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._ids = np.zeros(0, np.int32)

    def store(self, split: str, batches: Iterable[EncodedBatch], progress: Progress) -> None:
        """Writes the batches of a split, with uint32 word numbers as tokens."""
        with open(self._path(split), "wb") as file:
            for numbers, starts, counts in batches:
                header = np.array([len(numbers), len(starts), *counts], np.int64)
                # Not `tofile`, which does not report a full disk.
                for part in (header, starts, numbers):
                    file.write(part.tobytes())
                progress(split, counts.bytes)

    def use(self, tokenizer: Tokenizer, ids: np.ndarray) -> None:
        """Sets the tokenizer and the token id of every provisional number, as int vector."""
        self.tokenizer = tokenizer
        self._ids = ids

    def batches(self, split: str) -> Iterator[EncodedBatch]:
        """Reads a split; raises DataDamagedError if its file was changed."""
        with open(self._path(split), "rb") as file:
            while (header := np.fromfile(file, np.int64, 6)).size:
                starts = np.fromfile(file, np.int64, header[1])
                numbers = np.fromfile(file, np.uint32, header[0])
                if (len(numbers), len(starts)) != tuple(header[:2]):
                    what = "A temporary file is shorter than what was written."
                    raise DataDamagedError(what, where=file.name, remedy="Check the disk.")
                counts = TextCounts(*header[2:].tolist())
                yield EncodedBatch(self._ids[numbers], starts, counts)

    def _path(self, split: str) -> str:
        return os.path.join(self._folder, f"{split}.numbers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePieceTraining(VocabularyTraining):
    """Training of a SentencePiece model; see `train_sentence_piece`.

    Training runs in the calling process; the workers encode.

    Args:
        vocabulary_size: int. Largest number of pieces. Defaults to `32_000`.
        model_type: str. `"bpe"` or `"unigram"`. Defaults to `"unigram"`.
    """

    uses_tensorflow = True

    vocabulary_size: int = 32_000
    model_type: Literal["bpe", "unigram"] = "unigram"

    def train(
        self, splits: Splits, workers: OrderedWorkers, progress: Progress
    ) -> SentencePieceTokenizer:
        texts = self._texts(splits, progress)
        with _vocabulary_errors():
            return train_sentence_piece(texts, self.vocabulary_size, model_type=self.model_type)

    def _texts(self, splits: Splits, progress: Progress) -> Iterator[bytes]:
        for name in self.counted(splits):
            for batch in work_batches(name, splits[name]):
                for piece in batch:
                    # The trainer does not report where text is invalid.
                    located(lambda piece: decode_utf8(piece.text), piece)
                    yield piece.text
                    progress(name, len(piece.text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordPieceTraining(VocabularyTraining):
    """Training of a WordPiece vocabulary; see `train_word_pieces`.

    Args:
        rule: `WordRule`. How text is split into words.
        vocabulary_size: int. Largest number of pieces. Defaults to `32_000`.
        unknown_token: str. Defaults to `"<unk>"`.
    """

    uses_tensorflow = True

    rule: WordRule
    vocabulary_size: int = 32_000
    unknown_token: str = "<unk>"

    def train(
        self, splits: Splits, workers: OrderedWorkers, progress: Progress
    ) -> WordPieceTokenizer:
        numbers = _numbered_words(self, splits, workers, progress)
        with _vocabulary_errors():
            return train_word_pieces(
                numbers.builder,
                self.vocabulary_size,
                unknown_token=self.unknown_token,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordTraining(VocabularyTraining):
    """Training of a word vocabulary; see `WordVocabularyBuilder.build`.

    The text is read once. Words are numbered by first occurrence and the numbers are written to
    files. One look-up turns them into token ids when the vocabulary is known.

    Args:
        rule: `WordRule`. How text is split into words.
        special_tokens: tuple of str. Defaults to none.
        eos_token: optional str. Defaults to `None`.
        unknown_token: optional str. Defaults to `None`.
        min_frequency: int. Defaults to `0`.
        vocabulary_size: optional int. Defaults to all words.
    """

    rule: WordRule
    special_tokens: tuple[str, ...] = ()
    eos_token: str | None = None
    unknown_token: str | None = None
    min_frequency: int = 0
    vocabulary_size: int | None = None

    def train(self, splits: Splits, workers: OrderedWorkers, progress: Progress) -> WordTokenizer:
        numbers = _numbered_words(self, splits, workers, progress)
        return self._build(numbers)

    def tokenize(
        self, splits: Splits, workers: OrderedWorkers, scratch_folder: str, progress: Progress
    ) -> SpilledIds:
        numbers = ParallelWordCounter(self.rule)
        texts = SpilledIds(scratch_folder)
        counted = self.counted(splits)
        for name in counted:
            texts.store(name, numbers.batches(name, splits[name], workers), progress)
        tokenizer = self._build(numbers)
        for name in splits:
            if name not in counted:
                texts.store(name, numbers.batches(name, splits[name], workers), progress)
        words = numbers.builder.words
        try:
            texts.use(tokenizer, tokenizer.ids_of(words))
        except KeyError as error:
            word = error.args[0].decode() if error.args[0] != LINE_MARK else "of line ends"
            raise DataDamagedError(
                f"The word {word[:80]!r} is in the text and not in the vocabulary.",
                where=f"splits {', '.join(splits)}",
                remedy="Name a token for unknown words, or count all splits.",
            ) from error
        return texts

    def _build(self, numbers: ParallelWordCounter) -> WordTokenizer:
        with _vocabulary_errors():
            return numbers.builder.build(
                special_tokens=self.special_tokens,
                min_frequency=self.min_frequency,
                vocabulary_size=self.vocabulary_size,
                eos_token=self.eos_token,
                unknown_token=self.unknown_token,
            )


def _numbered_words(
    training: WordPieceTraining | WordTraining,
    splits: Splits,
    workers: OrderedWorkers,
    progress: Progress,
) -> ParallelWordCounter:
    """Numbers the words of the counted splits."""
    numbers = ParallelWordCounter(training.rule)
    for name in training.counted(splits):
        for batch in numbers.batches(name, splits[name], workers):
            progress(name, batch.counts.bytes)
    return numbers
