"""Tokenizer of words, and the rule that splits text into words."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from txl_tf.config.base import FrozenConfig
from txl_tf.data.tokenizers.tokenizer import (
    OPTIONS_FILE,
    TOKENS_FILE,
    InvalidTextError,
    Tokenizer,
    decode_utf8,
)
from txl_tf.storage.strict_json import json_file, parse_json


def join_words(
    token_ids: np.ndarray, tokens: Sequence[bytes], mark_id: int | None, is_double: bool
) -> bytes:
    """Joins words with spaces, and writes a line feed for each token that marks a line.

    With `is_double`, a line has a mark before and after it, and the mark before it is dropped. Ids
    that begin with a mark begin a line. Other ids begin within a line, which their first mark ends.
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


# Stands for a token that marks a line. This byte never occurs in UTF-8, so it is not a word.
LINE_MARK = b"\xff"
# White space at which `str.split` splits and `bytes.split` does not. Each pattern begins with a
# fixed byte, so that the search is as fast as memory.
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
    """Rule of the official Transformer-XL code that splits text into words.

    Lines end at LF, CR LF or CR. Words are separated by Unicode white space as in `str.split`,
    which includes U+00A0 and U+2028. NUL and the byte order mark U+FEFF are parts of words.

    Args:
        lower_case: bool. If `True`, words are converted to lower case. Defaults to `False`.
        add_eos: bool. If `True`, a token follows every line, also an empty one. Defaults to
            `False`.
        add_double_eos: bool. If `True`, a token is before and after every line, as for the
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
        """True if tokens mark lines."""
        return self.add_eos or self.add_double_eos

    @property
    def eos_token(self) -> str | None:
        """Token that marks lines, as in the official code; `None` if lines are not marked."""
        return "<eos>" if self.add_eos else "<S>" if self.add_double_eos else None

    def split(
        self, text: bytes, begins_line: bool = True, ends_document: bool = True
    ) -> list[bytes]:
        """Splits a document, or a piece of one, into words; InvalidTextError if it is not UTF-8.

        `LINE_MARK` stands for each token that marks a line. `begins_line` tells whether the text
        begins a line. `ends_document` tells whether the document ends with the text; a last line
        without a line end is then complete.
        """
        text = self._normalise(text)
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

    def _normalise(self, text: bytes) -> bytes:
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


class RuleTokenizer(Tokenizer):
    """Base class of tokenizers that split text into words by a `WordRule`.

    Raises ValueError unless the tokens are different words, or pieces of words after
    `suffix_indicator`. The `eos_token` of the rule and `unknown_token` must be among them unless
    they are `None`.
    """

    reads_lines = True
    suffix_indicator: ClassVar[str] = ""

    def __init__(
        self, tokens: Sequence[str], rule: WordRule, *, unknown_token: str | None = None
    ) -> None:
        eos_token = rule.eos_token
        for name, token in (("rule.eos_token", eos_token), ("unknown_token", unknown_token)):
            if token is not None and token not in tokens:
                raise ValueError(f"The vocabulary must have the `{name}`. Received: no {token!r}")
        words = [token.removeprefix(self.suffix_indicator).encode() for token in tokens]
        has_spaces = WordRule().split(b"\n".join(words)) != words
        if not words or has_spaces or len(set(tokens)) != len(tokens):
            raise ValueError(
                "A vocabulary must have at least one token; tokens must be different, not empty "
                f"and without white space. Received: {len(words)} tokens, {len(set(tokens))} "
                f"different, such as {list(tokens)[:8]}"
            )
        self.rule = rule
        self.unknown_token = unknown_token
        self.tokens = [token.encode() for token in tokens]
        self.vocabulary_size = len(tokens)
        self.mark_id = None if eos_token is None else list(tokens).index(eos_token)
        # With a mark before and after it, each line is a sentence of its own.
        self.end_token_id = self.mark_id if rule.add_double_eos else None
        self.unknown_id = None if unknown_token is None else list(tokens).index(unknown_token)

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        options = parse_json(files[OPTIONS_FILE])
        del options["eos_token"]  # The rule determines it.
        unknown_token = options.pop("unknown_token")
        tokens = files[TOKENS_FILE].decode().removesuffix("\n").split("\n")
        return cls(tokens, WordRule.from_dict(options), unknown_token=unknown_token)

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files: the tokens, one on each line, and the options."""
        options: dict[str, Any] = self.rule.to_dict()
        options |= {"eos_token": self.rule.eos_token, "unknown_token": self.unknown_token}
        return {
            TOKENS_FILE: b"\n".join(self.tokens) + b"\n",
            OPTIONS_FILE: json_file(options),
        }

    def token_texts(self) -> list[bytes]:
        return list(self.tokens)

    def _decode(self, ids: np.ndarray) -> bytes:
        return join_words(ids, self.tokens, self.mark_id, self.rule.add_double_eos)


# WikiText writes a hyphen, comma or point within a word between spaces and `@`. It was tokenized by
# Moses, whose detokenizer joins such words in the same way.
_MARKS = (b"@-@", b"@,@", b"@.@")
_MARK = re.compile(" @([-,.])@ ")
_BEGUN_MARK = re.compile(r" (@([-,.]@?)?)?\Z")


class WordTokenizer(RuleTokenizer):
    """Word tokenizer with a fixed vocabulary and the rules of the official code.

    White space is lost: `decode` writes one space between words, and a line feed for a token that
    marks a line. With `joins_marks`, readable text joins words at the marks `@-@`, `@,@` and `@.@`
    of WikiText, as in `well-known`. `encode` reads the joined text as other words. Raises
    ValueError as `RuleTokenizer` does.
    """

    kind = "words"

    def __init__(
        self, words: Sequence[str], rule: WordRule, *, unknown_token: str | None = None
    ) -> None:
        super().__init__(words, rule, unknown_token=unknown_token)
        self.ids = {word: index for index, word in enumerate(self.tokens)}
        if self.mark_id is not None:
            self.ids[LINE_MARK] = self.mark_id
        self.has_marks = all(mark in self.ids for mark in _MARKS)

    def readable(self, text: str) -> str:
        return _MARK.sub(r"\1", text) if self.joins_marks else text

    def num_certain(self, readable: str) -> int:
        certain = super().num_certain(readable)
        # What may be the beginning of a mark at the end is shortened if the next word follows.
        mark = _BEGUN_MARK.search(readable, 0, certain) if self.joins_marks else None
        return certain if mark is None else mark.start()

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        words = self.rule.split(text, begins_line, ends_document)
        unknown = itertools.repeat(-1 if self.unknown_id is None else self.unknown_id)
        ids = np.fromiter(map(self.ids.get, words, unknown), np.int32, len(words))
        if self.unknown_id is None and (is_unknown := ids < 0).any():
            place = int(np.argmax(is_unknown))
            raise self._unknown_word(text, place - words[:place].count(LINE_MARK))
        return ids.astype(self.token_dtype)

    def _unknown_word(self, text: bytes, index: int) -> InvalidTextError:
        characters = text.decode()
        match = next(itertools.islice(re.finditer(r"\S+", characters), index, None))
        return InvalidTextError(
            (
                f"The word {match.group()[:80]!r} is not in the vocabulary, "
                "which has no token for unknown words."
            ),
            text,
            len(characters[: match.start()].encode()),
        )
