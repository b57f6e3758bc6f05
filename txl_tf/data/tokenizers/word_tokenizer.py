"""Rule that splits text into words, tokenizers based on it, and the word tokenizer."""

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from txl_tf.config.base import FrozenConfig
from txl_tf.data.tokenizers.tokenizer import (
    InvalidTextError,
    Tokenizer,
    decode_utf8,
    narrowest_token_dtype,
)
from txl_tf.storage.untrusted_files import parse_json


def join_words(
    token_ids: np.ndarray, tokens: Sequence[bytes], mark_id: int | None, is_double: bool
) -> bytes:
    """Joins words with spaces and replaces each line mark by a line feed.

    With `is_double`, marks come in pairs and the first of each pair is dropped; ids that begin
    within a line begin with a second mark.
    """
    if mark_id is None:
        return b" ".join(map(tokens.__getitem__, token_ids))
    marks = token_ids == mark_id
    if is_double:
        opens = marks & ((np.cumsum(marks) % 2 == 1) == bool(marks[:1].any()))
        token_ids, marks = token_ids[~opens], marks[~opens]
    pairs = zip(token_ids, marks, strict=True)
    words = [b"\n" if is_mark else tokens[index] for index, is_mark in pairs]
    return b" ".join(words).replace(b" \n", b"\n").replace(b"\n ", b"\n")


# This byte never occurs in UTF-8, so it is no word.
LINE_MARK = b"\xff"
# White space of `str.split` that `bytes.split` does not split at. Each pattern begins with a fixed
# byte, which makes the search as fast as memory.
_WIDE_SPACES = tuple(
    re.compile(pattern)
    for pattern in (
        rb"\xc2[\x85\xa0]",
        rb"\xe1\x9a\x80",
        rb"\xe2\x80[\x80-\x8a\xa8\xa9\xaf]",
        rb"\xe2\x81\x9f",
        rb"\xe3\x80\x80",
    )
)
_SEPARATORS = (b"\x1c", b"\x1d", b"\x1e", b"\x1f")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordRule(FrozenConfig):
    """Splitting rule of the official Transformer-XL code.

    Lines end at LF, CR LF or CR. Words are separated by Unicode white space as in `str.split`,
    including U+00A0 and U+2028. NUL and the byte order mark U+FEFF stay in words.

    Args:
        lower_case: bool. If `True`, words are converted to lower case. Defaults to `False`.
        add_eos: bool. If `True`, a token follows every line, also an empty one. Defaults to
            `False`.
        add_double_eos: bool. If `True`, a token comes before and after every line, as for the
            independent sentences of One Billion Word. Defaults to `False`.
    """

    lower_case: bool = False
    add_eos: bool = False
    add_double_eos: bool = False

    def validate(self) -> None:
        if self.add_eos and self.add_double_eos:
            raise ValueError(
                "`add_eos` and `add_double_eos` exclude each other. "
                f"Received: add_eos={self.add_eos}, add_double_eos={self.add_double_eos}"
            )

    @property
    def marks_lines(self) -> bool:
        """True if lines are marked by a token."""
        return self.add_eos or self.add_double_eos

    @property
    def default_eos_token(self) -> str | None:
        """Token that marks lines in the official code, or `None` if lines are not marked."""
        return "<eos>" if self.add_eos else "<S>" if self.add_double_eos else None

    def split(
        self, text: bytes, begins_line: bool = True, ends_document: bool = True
    ) -> list[bytes]:
        """Splits text into words.

        Args:
            text: bytes. UTF-8 text, or a piece of it.
            begins_line: bool. True if the text begins a line, False if it continues one. Defaults
                to `True`.
            ends_document: bool. True if the document ends here, which completes a last line without
                a line end. Defaults to `True`.

        Returns:
            The words, with `LINE_MARK` in the place of each token of a line.

        Raises:
            InvalidTextError: If the text is not UTF-8.
        """
        text = self._normalised(text)
        if not self.marks_lines:
            return text.split()
        is_complete = text.endswith(b"\n")
        lines = text[:-1] if is_complete else text
        between = b" \xff \xff " if self.add_double_eos else b" \xff "
        words = lines.replace(b"\n", between).split()
        if self.add_double_eos and begins_line and text:
            words.insert(0, LINE_MARK)
        if is_complete or (ends_document and (text or not begins_line)):
            words.append(LINE_MARK)
        return words

    def _normalised(self, text: bytes) -> bytes:
        is_ascii = text.isascii()
        if not is_ascii:
            characters = decode_utf8(text)
        if self.lower_case:
            text = text.lower() if is_ascii else characters.lower().encode()
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if any(separator in text for separator in _SEPARATORS):
            text = re.sub(rb"[\x1c-\x1f]", b" ", text)
        if not is_ascii:
            for pattern in _WIDE_SPACES:
                text = pattern.sub(b" ", text)
        return text


_OPTIONS_FILE = "vocabulary.json"
_TOKENS_FILE = "vocabulary.txt"


class RuleTokenizer(Tokenizer):
    """Base class of tokenizers whose text is split into words by a `WordRule`.

    Raises ValueError if `eos_token` or `unknown_token` is required but missing.
    """

    reads_lines = True

    def __init__(
        self,
        tokens: Sequence[str],
        rule: WordRule,
        *,
        eos_token: str | None = None,
        unknown_token: str | None = None,
    ) -> None:
        if rule.marks_lines != (eos_token is not None):
            raise ValueError(
                "`eos_token` must be given if, and only if, the rule marks lines. "
                f"Received: eos_token={eos_token!r}, rule={rule}"
            )
        for name, token in (("eos_token", eos_token), ("unknown_token", unknown_token)):
            if token is not None and token not in tokens:
                raise ValueError(f"`{name}` must be in the vocabulary. Received: {token!r}")
        self.rule = rule
        self.eos_token = eos_token
        self.unknown_token = unknown_token
        self.vocabulary_size = len(tokens)
        self.token_dtype = narrowest_token_dtype(self.vocabulary_size)
        self._encoded = [token.encode() for token in tokens]
        self.mark_id = None if eos_token is None else list(tokens).index(eos_token)
        self.unknown_id = None if unknown_token is None else list(tokens).index(unknown_token)

    @property
    def end_token_id(self) -> int | None:
        # With marks at both ends, each line is a separate sentence.
        return self.mark_id if self.rule.add_double_eos else None

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        options = parse_json(files[_OPTIONS_FILE])
        marked = {name: options.pop(name) for name in ("eos_token", "unknown_token")}
        tokens = files[_TOKENS_FILE].decode().removesuffix("\n").split("\n")
        return cls(tokens, WordRule.from_dict(options), **marked)

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files: the tokens, one per line, and the options."""
        options: dict[str, Any] = self.rule.to_dict()
        options |= {"eos_token": self.eos_token, "unknown_token": self.unknown_token}
        return {
            _TOKENS_FILE: b"\n".join(self._encoded) + b"\n",
            _OPTIONS_FILE: (json.dumps(options, indent=2) + "\n").encode(),
        }

    def token_texts(self) -> list[bytes]:
        return list(self._encoded)

    def _decode(self, ids: np.ndarray) -> bytes:
        return join_words(ids, self._encoded, self.mark_id, self.rule.add_double_eos)


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
        self.ids = self._ids_of_words()
        self.has_marks = all(mark in self.ids for mark in _MARKS)

    def _ids_of_words(self) -> dict[bytes, int]:
        # Words of the vocabulary file are separated by line ends only.
        if not self.words or WordRule().split(b"\n".join(self.words)) != self.words:
            bad = [word for word in self.words if word.split() != [word]][:8]
            raise ValueError(
                "`words` must have at least one word, each without white space and not empty. "
                f"Received: {bad}"
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
        return np.fromiter(map(self.ids.__getitem__, words), self.token_dtype, len(words))

    def _unknown_word(self, text: bytes, words: list[bytes]) -> InvalidTextError:
        unmarked = [word for word in words if word != LINE_MARK]
        index = next(i for i, word in enumerate(unmarked) if word not in self.ids)
        characters = text.decode()
        found = next(itertools.islice(re.finditer(r"\S+", characters), index, None))
        reason = (
            f"The word {found.group()[:80]!r} is not in the vocabulary, "
            "which has no token for unknown words."
        )
        return InvalidTextError.at(reason, text, len(characters[: found.start()].encode()))


class _IdsOrUnknown(dict[bytes, int]):
    """Ids of words, and one id for all others, without a Python branch per look-up."""

    def __init__(self, ids: Mapping[bytes, int], unknown_id: int) -> None:
        super().__init__(ids)
        self._unknown_id = unknown_id

    def __missing__(self, word: bytes) -> int:
        return self._unknown_id
