"""The tokenizer of words that white space separates."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from txl_tf.data.tokenizers.tokenizer import (
    InvalidTextError,
    Tokenizer,
    checked_token_ids,
    narrowest_token_dtype,
)
from txl_tf.data.tokenizers.word_splitting import LINE_MARK, WordRule, join_words
from txl_tf.storage.json_text import parse_json

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.graph_tokenizers import GraphWordTokenizer

_OPTIONS_FILE = "vocabulary.json"
_WORDS_FILE = "vocabulary.txt"


class WordTokenizer(Tokenizer):
    """Word tokenizer with a fixed vocabulary and the rules of the official code.

    White space is not kept: `decode` puts one space between words, and a line
    end where lines have tokens. A line longer than half a mebibyte is read in
    pieces (`text_pieces`), so a word that long is cut.

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
    reads_lines = True
    _definition = b"txl-tf tokenizer; kind words; version 1\n"

    def __init__(
        self,
        words: Sequence[str],
        rule: WordRule,
        *,
        eos_token: str | None = None,
        unknown_token: str | None = None,
    ) -> None:
        if rule.marks_lines != (eos_token is not None):
            raise ValueError(
                "`eos_token` is for rules that mark lines, and they need it. "
                f"Received: eos_token={eos_token!r}, rule={rule}"
            )
        self.rule = rule
        self.eos_token = eos_token
        self.unknown_token = unknown_token
        self.words = [word.encode() for word in words]
        self.vocabulary_size = len(self.words)
        self.token_dtype = narrowest_token_dtype(self.vocabulary_size)
        self._ids = self._ids_of_words()
        self._mark_id = self._ids.get(LINE_MARK)

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
        for name in ("eos_token", "unknown_token"):
            token = getattr(self, name)
            if token is not None and token.encode() not in ids:
                raise ValueError(f"`{name}` must be in the vocabulary. Received: {token!r}")
        if self.unknown_token is not None:
            ids = _IdsOrUnknown(ids, ids[self.unknown_token.encode()])
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
            content: bytes. A word a line; what follows the word on its line,
                such as a count, is not read. Words that were there are left
                out.
            rule: `WordRule`. How text is split.
            eos_token: optional str. As for the constructor.
            unknown_token: optional str. As for the constructor.

        Returns:
            The tokenizer.

        Raises:
            InvalidTextError: If the list is not UTF-8 or has an empty line.
        """
        fields = [WordRule().split(line) for line in content.splitlines()]
        if [] in fields:
            number = fields.index([])
            offset = sum(map(len, content.splitlines(keepends=True)[:number]))
            raise InvalidTextError(
                "A line of the list has no word.", offset_bytes=offset, line=number + 1
            )
        words = dict.fromkeys(line[0].decode() for line in fields)
        return cls(list(words), rule, eos_token=eos_token, unknown_token=unknown_token)

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        options = parse_json(files[_OPTIONS_FILE])
        tokens = {name: options.pop(name) for name in ("eos_token", "unknown_token")}
        words = files[_WORDS_FILE].decode().removesuffix("\n").split("\n")
        return cls(words, WordRule.from_dict(options), **tokens)

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files: the words, one a line, and the options."""
        options: dict[str, Any] = self.rule.to_dict()
        options |= {"eos_token": self.eos_token, "unknown_token": self.unknown_token}
        return {
            _WORDS_FILE: b"\n".join(self.words) + b"\n",
            _OPTIONS_FILE: (json.dumps(options, indent=2) + "\n").encode(),
        }

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

    def decode(self, token_ids: np.ndarray | Sequence[int]) -> bytes:
        """Turns token ids back into text.

        Args:
            token_ids: vector of ints in `[0, vocabulary_size)`.

        Returns:
            The words with a space between them. A line's token becomes a line
            feed; of two that enclose a line, the first becomes nothing. Where
            the ids begin within a line, its token is the one at its end.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        ids = checked_token_ids(token_ids, self.vocabulary_size)
        return join_words(ids, self.words, self._mark_id, self.rule.add_double_eos)

    def graph_tokenizer(self) -> "GraphWordTokenizer":
        from txl_tf.data.tokenizers.graph_tokenizers import GraphWordTokenizer

        unknown_id = None
        if self.unknown_token is not None:
            unknown_id = self._ids[self.unknown_token.encode()]
        return GraphWordTokenizer(self.words, self.rule, self._mark_id, unknown_id)


class _IdsOrUnknown(dict[bytes, int]):
    """Ids of words, and one id for all others; looked up without a branch in Python."""

    def __init__(self, ids: Mapping[bytes, int], unknown_id: int) -> None:
        super().__init__(ids)
        self._unknown_id = unknown_id

    def __missing__(self, word: bytes) -> int:
        return self._unknown_id
