"""Vocabulary training for each tokenizer: characters, words, WordPiece, SentencePiece."""

import abc
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal

from txl_tf.data.text import DocumentPiece, Splits, work_batches
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.sentence_piece_tokenizer import train_sentence_piece
from txl_tf.data.tokenizers.tokenizer import Tokenizer, damaged_text, decode_utf8, map_pieces
from txl_tf.data.tokenizers.word_piece_tokenizer import train_word_pieces
from txl_tf.data.tokenizers.word_tokenizer import LINE_MARK, WordRule, WordTokenizer
from txl_tf.data.workers import OrderedWorkers
from txl_tf.errors import DataDamagedError

Progress = Callable[[str, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyTraining(abc.ABC):
    """Base class of vocabulary training on `counted_splits`, which reads the text once."""

    kind: ClassVar[str]
    reads_lines: ClassVar[bool] = True
    counted_splits: tuple[str, ...] = ("train",)

    def train(self, splits: Splits, num_workers: int, progress: Progress) -> Tokenizer:
        """Builds the tokenizer from documents that can be iterated more than once.

        `progress` gets the split and the bytes read since the last call. Raises DataDamagedError if
        the text cannot give this vocabulary.
        """
        counts: Counter[Any] = Counter()
        with OrderedWorkers(self._count, num_workers) as workers:
            for name, num_bytes, found in workers.map(self._batches(splits)):
                counts.update(found)  # in the order of first occurrence
                progress(name, num_bytes)
        with _vocabulary_errors():
            return self.build(counts)

    def _batches(self, splits: Splits) -> Iterator[list[DocumentPiece]]:
        """Yields the batches of the counted splits, in the order of the text."""
        for name in splits:
            if name in self.counted_splits:
                yield from work_batches(name, splits[name])

    def _count(self, pieces: Sequence[DocumentPiece]) -> tuple[str, int, Counter[Any]]:
        """Counts the units of a batch; returns its split, its bytes, and the counts."""
        counts: Counter[Any] = Counter()
        with damaged_text():
            for units in map_pieces(self._units, pieces, self.reads_lines):
                counts.update(units)
        return pieces[0].split, sum(len(piece.text) for piece in pieces), counts

    def _units(self, text: bytes, begins_line: bool, ends_document: bool) -> Sequence[Any]:
        """Returns the units of a piece that are counted."""
        raise NotImplementedError

    def build(self, counts: Counter[Any]) -> Tokenizer:
        """Builds the tokenizer; raises ValueError if the counts do not give one."""
        raise NotImplementedError


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
    """Training of a character vocabulary, by falling count, ties by first occurrence.

    Args:
        min_frequency: int. Defaults to `0`.
        vocabulary_size: optional int, with `unknown_token`. Defaults to all characters.
        unknown_token: optional str. Defaults to `None`.
    """

    kind = "characters"
    reads_lines = False

    min_frequency: int = 0
    vocabulary_size: int | None = None
    unknown_token: str | None = None

    def _units(self, text: bytes, begins_line: bool, ends_document: bool) -> Sequence[Any]:
        return decode_utf8(text)

    def build(self, counts: Counter[str]) -> CharacterTokenizer:
        kept = [each for each, count in counts.most_common() if count >= self.min_frequency]
        tokens = _limited_tokens(kept, self.vocabulary_size, self.unknown_token)
        # The tokenizer adds the unknown token if it is no character of the text.
        known = [token for token in tokens if token != self.unknown_token or token in kept]
        return CharacterTokenizer(known, unknown_token=self.unknown_token)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePieceTraining(VocabularyTraining):
    """Training of a SentencePiece model, in the calling process; see `train_sentence_piece`.

    Args:
        vocabulary_size: int. Largest number of pieces. Defaults to `32_000`.
        model_type: str. `"bpe"` or `"unigram"`. Defaults to `"unigram"`.
    """

    kind = "sentencepiece"

    vocabulary_size: int = 32_000
    model_type: Literal["bpe", "unigram"] = "unigram"

    def train(self, splits: Splits, num_workers: int, progress: Progress) -> Tokenizer:
        def texts() -> Iterator[bytes]:
            for batch in self._batches(splits):
                for piece in batch:
                    # The trainer does not report where text is invalid.
                    with damaged_text():
                        map_pieces(lambda text, *_: decode_utf8(text), [piece])
                    yield piece.text
                    progress(piece.split, len(piece.text))

        with _vocabulary_errors():
            return train_sentence_piece(texts(), self.vocabulary_size, model_type=self.model_type)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordPieceTraining(VocabularyTraining):
    """Training of a WordPiece vocabulary; see `train_word_pieces`.

    Args:
        rule: `WordRule`. How text is split into words.
        vocabulary_size: int. Largest number of pieces. Defaults to `32_000`.
        unknown_token: str. Defaults to `"<unk>"`.
    """

    kind = "wordpiece"

    rule: WordRule
    vocabulary_size: int = 32_000
    unknown_token: str = "<unk>"

    def _units(self, text: bytes, begins_line: bool, ends_document: bool) -> Sequence[Any]:
        return self.rule.split(text, begins_line, ends_document)

    def build(self, counts: Counter[bytes]) -> Tokenizer:
        return train_word_pieces(
            counts, self.rule, self.vocabulary_size, unknown_token=self.unknown_token
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordTraining(VocabularyTraining):
    """Training of a word vocabulary, in the order of the official code.

    Special tokens come first, then words by falling count, ties by first occurrence. The token of
    a line is put first and `unknown_token` last unless they are among the others.

    Args:
        rule: `WordRule`. How text is split into words.
        special_tokens: tuple of str. Defaults to none.
        unknown_token: optional str. Defaults to `None`.
        min_frequency: int. Defaults to `0`.
        vocabulary_size: optional int, with all tokens. Defaults to all words.
    """

    kind = "words"

    rule: WordRule
    special_tokens: tuple[str, ...] = ()
    unknown_token: str | None = None
    min_frequency: int = 0
    vocabulary_size: int | None = None

    def _units(self, text: bytes, begins_line: bool, ends_document: bool) -> Sequence[Any]:
        return self.rule.split(text, begins_line, ends_document)

    def build(self, counts: Counter[bytes]) -> WordTokenizer:
        special, eos_token = self.special_tokens, self.rule.default_eos_token
        if eos_token is not None and eos_token not in special:
            special = (eos_token, *special)
        kept = [
            word.decode()
            for word, count in counts.most_common()
            if count >= self.min_frequency and word != LINE_MARK
        ]
        vocabulary = _limited_tokens(
            list(dict.fromkeys((*special, *kept))),
            self.vocabulary_size,
            self.unknown_token,
            num_special=len(set(special)),
        )
        return WordTokenizer(
            vocabulary, self.rule, eos_token=eos_token, unknown_token=self.unknown_token
        )


def _limited_tokens(
    tokens: list[str], size: int | None, unknown_token: str | None, *, num_special: int = 0
) -> list[str]:
    """Returns the first `size` tokens, with `unknown_token` last if it is not among them.

    Raises ValueError if the first `num_special` tokens and one other do not fit.
    """
    kept = tokens[:size]
    if unknown_token is not None and unknown_token not in kept:
        kept = [*tokens[: None if size is None else size - 1], unknown_token]
        num_special += 1
    if size is not None and size <= num_special:
        raise ValueError(
            f"`vocabulary_size` must be at least {num_special + 1}: {num_special} special tokens "
            f"and one other. Received: {size}"
        )
    return kept
