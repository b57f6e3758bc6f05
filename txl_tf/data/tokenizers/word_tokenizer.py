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


# Within a word, WikiText writes these characters between spaces and signs. The script that made
# it, of the Moses system, joins them again in the same way.
_MARKS = (b"@-@", b"@,@", b"@.@")
_MARK = re.compile(" @([-,.])@ ")
_BEGUN_MARK = re.compile(r" (@([-,.]@?)?)?\Z")
_NUMBER = re.compile(rb"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")


class WordTokenizer(RuleTokenizer):
    """Word tokenizer with a fixed vocabulary and the rules of the official code.

    White space is not kept: `decode` puts one space between words, and a line
    end where lines have tokens. A line longer than half a mebibyte is read in
    pieces (`split_at_lines`), so a word that long is cut.

    A vocabulary with the marks of WikiText, `@-@`, `@,@` and `@.@`, reads and
    writes text that has them (`well @-@ known`). With `joins_marks` set to True,
    text for people has the words joined (`well-known`, `1,000`), which `encode`
    does not read as the same words; `decode` keeps the marks.

    Args:
        words: sequence of str. The vocabulary; the id of a word is its place.
        rule: `WordRule`. How text is split.
        eos_token: optional str. The word of the vocabulary that marks lines,
            where the rule marks them. Defaults to `None`.
        unknown_token: optional str. The word of the vocabulary that stands for
            all others. Defaults to `None`: another word is an error.

    Raises:
        ValueError: If the words are not different words, or a token is
            missing.
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
        # A vocabulary file has a word a line, and no other way to tell them apart.
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
        """Builds the tokenizer of a published list of words.

        Args:
            content: bytes. A word a line. A number may follow the word, such as
                its count, and is not read. Words that were there are left out.
            rule: `WordRule`. How text is split.
            eos_token: optional str. As for the constructor.
            unknown_token: optional str. As for the constructor.

        Raises:
            InvalidTextError: If the list is not UTF-8, or a line is no word, or
                something other than a number follows the word.
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
        # With the word behind it, what may be a mark becomes shorter.
        begun = _BEGUN_MARK.search(readable, 0, certain) if self.joins_marks else None
        return certain if begun is None else begun.start()

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        words = self.rule.split(text, begins_line, ends_document)
        try:
            return self.ids_of(words)
        except KeyError:
            raise self._unknown_word(text, words) from None

    def ids_of(self, words: Sequence[bytes]) -> np.ndarray:
        """Returns the ids of words that the rule has split.

        Args:
            words: sequence of bytes. Words, and `LINE_MARK` for lines.

        Returns:
            Vector of type `token_dtype`.

        Raises:
            KeyError: If a word is unknown and there is no `unknown_token`.
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
    """Ids of words, and one id for all others; looked up without a branch in Python."""

    def __init__(self, ids: Mapping[bytes, int], unknown_id: int) -> None:
        super().__init__(ids)
        self._unknown_id = unknown_id

    def __missing__(self, word: bytes) -> int:
        return self._unknown_id


class WordVocabularyBuilder:
    """Builder of a word vocabulary: numbers words by first occurrence and counts them.

    The numbers are those of the order of first sight. They make text readable
    once: what `number` returns becomes token ids by one look-up in the array
    `tokenizer.ids_of(builder.words)`, when the vocabulary is known.

    Parts of a text can be counted by builders of their own, in processes of
    their own. Merged in the order of the text, they give the vocabulary of one
    pass, ties included: a word that is new in a part is new before everything
    that only later parts have.

    Args:
        rule: `WordRule`. How text is split.

    Example:
    ```python
    builder = WordVocabularyBuilder(WordRule(add_eos=True))
    numbers = builder.number(text)
    tokenizer = builder.build()
    token_ids = tokenizer.ids_of(builder.words)[numbers]
    ```
    """

    def __init__(self, rule: WordRule) -> None:
        self.rule = rule
        self._numbers: dict[bytes, int] = collections.defaultdict(itertools.count().__next__)
        self._counts = np.zeros(1024, np.int64)

    @property
    def words(self) -> list[bytes]:
        """The words by number, `LINE_MARK` for the token of lines among them."""
        return list(self._numbers)

    @property
    def counts(self) -> np.ndarray:
        """How often each word came, as int64 vector by number."""
        return self._counts[: len(self._numbers)]

    def number(
        self, text: bytes, begins_line: bool = True, ends_document: bool = True
    ) -> np.ndarray:
        """Counts the words of a text and returns their numbers.

        Args:
            text: bytes. UTF-8 text, or a piece of it.
            begins_line: bool. Whether the text begins a line. Defaults to
                `True`.
            ends_document: bool. Whether the text ends. Defaults to `True`.

        Returns:
            uint32 vector of numbers, which are no token ids yet.

        Raises:
            InvalidTextError: If the text is not UTF-8.
        """
        numbers = self.numbers_of(self.rule.split(text, begins_line, ends_document))
        self.add(np.bincount(numbers))
        return numbers

    def numbers_of(self, words: Sequence[bytes]) -> np.ndarray:
        """Returns the numbers of words as uint32 vector; a new word gets the next number."""
        return np.fromiter(map(self._numbers.__getitem__, words), np.uint32, len(words))

    def number_pieces(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Counts the words of a document that comes in pieces.

        Args:
            pieces: iterable of bytes. The pieces of one document, cut where
                `split_at_lines` cuts.

        Raises:
            InvalidTextError: If the text is not UTF-8.
        """
        return encode_in_order(self.number, pieces)

    def merge(self, words: Sequence[bytes], counts: np.ndarray) -> np.ndarray:
        """Adds what another builder has counted in the text that follows.

        Args:
            words: sequence of bytes. `words` of the other builder.
            counts: int64 vector. `counts` of the other builder.

        Returns:
            uint32 vector that turns the numbers of the other builder into
            those of this one.
        """
        numbers = self.numbers_of(words)
        # `np.bincount` would add in floating point.
        added = np.zeros(len(self._numbers), np.int64)
        added[numbers] = counts
        self.add(added)
        return numbers

    def add(self, counts: np.ndarray) -> None:
        """Adds counts by number, as int vector; new words must be among them."""
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
        """Makes the vocabulary, in the order of the official code.

        First come the special tokens, then the words by falling count. Words
        that came equally often stay in the order of first sight.

        Args:
            special_tokens: sequence of str. The first words of the vocabulary.
                Defaults to none.
            min_frequency: int. Words that came less often are left out.
                Defaults to `0`.
            vocabulary_size: optional int. Largest number of ids, those of
                special tokens among them. Defaults to all.
            eos_token: optional str. The token of lines, which is put before
                the special tokens unless it is one. Defaults to `"<eos>"`, and
                to `"<S>"` for a rule with `add_double_eos`.
            unknown_token: optional str. The token of words that are left out.
                It keeps its place among special tokens or words, and is put
                last where it is neither. Defaults to none.

        Raises:
            ValueError: If there are no words, or more special tokens than ids.
        """
        eos_token = eos_token or self.rule.default_eos_token
        if eos_token is not None and eos_token not in special_tokens:
            special_tokens = (eos_token, *special_tokens)
        words = self.words
        order = np.argsort(-self.counts, kind="stable")
        if LINE_MARK in self._numbers:
            # Lines are no words of the text.
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
