"""Word tokenizer and the builder of its vocabularies."""

import collections
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from txl_tf.data.tokenizers.tokenizer import (
    InvalidTextError,
    decode_utf8,
    encode_in_order,
    limited_tokens,
)
from txl_tf.data.tokenizers.word_splitting import LINE_MARK, RuleTokenizer, WordRule

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.graph_tokenizers import GraphWordTokenizer


# WikiText writes these characters within words between spaces and signs. The detokenizer of Moses,
# whose tokenizer made it, joins them in the same way.
_MARKS = (b"@-@", b"@,@", b"@.@")
_MARK = re.compile(" @([-,.])@ ")
_BEGUN_MARK = re.compile(r" (@([-,.]@?)?)?\Z")
_NUMBER = re.compile(rb"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")


class WordTokenizer(RuleTokenizer):
    """Word tokenizer with a fixed vocabulary and the rules of the official code.

    White space is not kept: `decode` puts one space between words, and a line feed for the token of
    a line. With `joins_marks`, readable text joins words at WikiText's marks `@-@`, `@,@` and `@.@`
    (`well-known`), which `encode` reads as other words. Raises ValueError unless the words are
    different words and include both tokens.
    """

    kind = "words"
    _definition = b"txl-tf tokenizer; kind words; version 1\n"

    def __init__(
        self,
        words: Sequence[str],
        rule: WordRule,
        *,
        eos_token: str | None = None,
        unknown_token: str | None = None,
    ) -> None:
        super().__init__(words, rule, eos_token=eos_token, unknown_token=unknown_token)
        self.words = self._encoded
        self._ids = self._ids_of_words()
        self.has_marks = all(mark in self._ids for mark in _MARKS)

    def _ids_of_words(self) -> dict[bytes, int]:
        # Words of the vocabulary file are separated by line ends only.
        if not self.words or WordRule().split(b"\n".join(self.words)) != self.words:
            raise ValueError(
                "`words` must be words without white space, at least one. "
                f"Received: {self.vocabulary_size} words"
            )
        ids = {word: index for index, word in enumerate(self.words)}
        if len(ids) != len(self.words):
            twice = next(word for i, word in enumerate(self.words) if ids[word] != i)
            raise ValueError(f"`words` must be different. Received: {twice.decode()!r} twice")
        if self.unknown_id is not None:
            ids = _IdsOrUnknown(ids, self.unknown_id)
        if self.eos_token is not None:
            ids[LINE_MARK] = ids[self.eos_token.encode()]
        return ids

    @classmethod
    def from_word_list(
        cls,
        content: bytes,
        rule: WordRule,
        *,
        eos_token: str | None = None,
        unknown_token: str | None = None,
    ) -> Self:
        """Builds the tokenizer from a published list of one word per line, without repetitions.

        A number after the word, such as its count, is ignored. Raises InvalidTextError if the list
        is not UTF-8, or a line is no word with an optional number.
        """
        decode_utf8(content)
        words: dict[str, None] = {}
        offset = 0
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            word, *others = WordRule().split(line) or [b""]
            if not word or len(others) > 1 or not all(map(_NUMBER.fullmatch, others)):
                entry = line.decode().strip()
                reason = (
                    f"An entry must be a word, or a word and its count, not {entry[:80]!r}: "
                    "text is split at white space, so that no word has any."
                )
                raise InvalidTextError(reason, offset_bytes=offset, line=number)
            words[word.decode()] = None
            offset += len(line)
        return cls(list(words), rule, eos_token=eos_token, unknown_token=unknown_token)

    def readable(self, text: str) -> str:
        return _MARK.sub(r"\1", text) if self.joins_marks else text

    def num_certain(self, readable: str) -> int:
        certain = super().num_certain(readable)
        # A possible mark at the end becomes shorter when the next word follows.
        begun = _BEGUN_MARK.search(readable, 0, certain) if self.joins_marks else None
        return certain if begun is None else begun.start()

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        words = self.rule.split(text, begins_line, ends_document)
        try:
            return self.ids_of(words)
        except KeyError:
            raise self._unknown_word(text, words) from None

    def ids_of(self, words: Sequence[bytes]) -> np.ndarray:
        """Returns the ids of split words and line marks.

        Raises KeyError if a word is unknown and there is no `unknown_token`.
        """
        return np.fromiter(map(self._ids.__getitem__, words), self.token_dtype, len(words))

    def _unknown_word(self, text: bytes, words: list[bytes]) -> InvalidTextError:
        unmarked = [word for word in words if word != LINE_MARK]
        index = next(i for i, word in enumerate(unmarked) if word not in self._ids)
        characters = text.decode()
        found = next(itertools.islice(re.finditer(r"\S+", characters), index, None))
        reason = (
            f"The word {found.group()[:80]!r} is not in the vocabulary, "
            "which has no token for unknown words."
        )
        return InvalidTextError.at(reason, text, len(characters[: found.start()].encode()))

    def graph_tokenizer(self) -> "GraphWordTokenizer":
        from txl_tf.data.tokenizers.graph_tokenizers import GraphWordTokenizer

        return GraphWordTokenizer(self.words, self.rule, self._mark_id, self.unknown_id)


class _IdsOrUnknown(dict[bytes, int]):
    """Ids of words, and one id for all others, without a Python branch per look-up."""

    def __init__(self, ids: Mapping[bytes, int], unknown_id: int) -> None:
        super().__init__(ids)
        self._unknown_id = unknown_id

    def __missing__(self, word: bytes) -> int:
        return self._unknown_id


class WordVocabularyBuilder:
    """Builder of a word vocabulary: numbers words by first occurrence and counts them.

    Numbers make one reading suffice: `tokenizer.ids_of(builder.words)[numbers]` gives the token ids
    once the vocabulary is built. Builders of consecutive parts of a text, merged in order, give the
    vocabulary of one pass, ties included.
    """

    def __init__(self, rule: WordRule) -> None:
        self.rule = rule
        self._numbers: dict[bytes, int] = collections.defaultdict(itertools.count().__next__)
        self._counts = np.zeros(1024, np.int64)

    @property
    def words(self) -> list[bytes]:
        """Words by number, including `LINE_MARK` for the token of lines."""
        return list(self._numbers)

    @property
    def counts(self) -> np.ndarray:
        """Occurrences of each word, an int64 vector by number."""
        return self._counts[: len(self._numbers)]

    def number(
        self, text: bytes, begins_line: bool = True, ends_document: bool = True
    ) -> np.ndarray:
        """Counts the words of a text or piece and returns their numbers as a uint32 vector.

        Raises InvalidTextError if the text is not UTF-8.
        """
        numbers = self.numbers_of(self.rule.split(text, begins_line, ends_document))
        self.add(np.bincount(numbers))
        return numbers

    def numbers_of(self, words: Sequence[bytes]) -> np.ndarray:
        """Returns the uint32 numbers of words; a new word gets the next number."""
        return np.fromiter(map(self._numbers.__getitem__, words), np.uint32, len(words))

    def number_pieces(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Counts the words of a document in pieces of `split_at_lines`, and yields their numbers.

        Raises InvalidTextError if the text is not UTF-8.
        """
        return encode_in_order(self.number, pieces)

    def merge(self, words: Sequence[bytes], counts: np.ndarray) -> np.ndarray:
        """Adds words and counts of a builder of the following text.

        Returns the uint32 vector that converts its numbers to the numbers of this builder.
        """
        numbers = self.numbers_of(words)
        # Weighted `np.bincount` would add in floating point.
        added = np.zeros(len(self._numbers), np.int64)
        added[numbers] = counts
        self.add(added)
        return numbers

    def add(self, counts: np.ndarray) -> None:
        """Adds an int vector of counts by number; it must cover all new words."""
        if len(self._numbers) > len(self._counts):
            grown = np.zeros(2 * len(self._numbers), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        self._counts[: len(counts)] += counts

    def build(
        self,
        *,
        special_tokens: Sequence[str] = (),
        min_frequency: int = 0,
        vocabulary_size: int | None = None,
        eos_token: str | None = None,
        unknown_token: str | None = None,
    ) -> WordTokenizer:
        """Builds the vocabulary in the order of the official code.

        Special tokens come first, then words by falling count, ties by first occurrence.
        `eos_token`, `"<eos>"` or `"<S>"` by default, is put first and `unknown_token` last unless
        they are among the others; `vocabulary_size` includes all of them. Raises ValueError without
        words, or with more special tokens than ids.
        """
        eos_token = eos_token or self.rule.default_eos_token
        if eos_token is not None and eos_token not in special_tokens:
            special_tokens = (eos_token, *special_tokens)
        words = self.words
        order = np.argsort(-self.counts, kind="stable")
        if LINE_MARK in self._numbers:
            # The line mark is no word of the text.
            order = order[order != self._numbers[LINE_MARK]]
        kept = [words[i].decode() for i in order[self.counts[order] >= min_frequency]]
        vocabulary = limited_tokens(
            list(dict.fromkeys((*special_tokens, *kept))),
            vocabulary_size,
            unknown_token,
            num_special=len(set(special_tokens)),
        )
        return WordTokenizer(
            vocabulary, self.rule, eos_token=eos_token, unknown_token=unknown_token
        )
