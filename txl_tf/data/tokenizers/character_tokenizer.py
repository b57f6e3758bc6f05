"""Tokenizer of characters."""

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from txl_tf.data.tokenizers.tokenizer import (
    OPTIONS_FILE,
    TOKENS_FILE,
    InvalidTextError,
    Tokenizer,
    decode_utf8,
)
from txl_tf.storage.strict_json import json_file, parse_json

_NUM_CODE_POINTS = 0x110000


class CharacterTokenizer(Tokenizer):
    """Tokenizer of Unicode characters with a fixed vocabulary.

    No character is dropped, also not white space, so `decode(encode(text)) == text` unless a
    character is unknown. `unknown_token` is a character of the vocabulary, or gets the last id.
    Without it an unknown character is an error. Raises ValueError for a character that occurs twice
    or has no form in UTF-8.
    """

    kind = "characters"

    def __init__(self, characters: Sequence[str], *, unknown_token: str | None = None) -> None:
        self.characters = list(characters)
        num_different = len({each for each in characters if len(each) == 1})
        if num_different != len(characters) or not characters:
            raise ValueError(
                "`characters` must be one or more single characters, each only once. "
                f"Received: {len(self.characters)} strings, first {self.characters[:8]}"
            )
        tokens = list(characters)
        self._ids = np.full(_NUM_CODE_POINTS, -1, np.int32)
        if unknown_token is not None:
            if unknown_token not in tokens:
                tokens.append(unknown_token)
            self.unknown_id = tokens.index(unknown_token)
            self._ids[:] = self.unknown_id
        self._ids[[ord(character) for character in characters]] = np.arange(len(characters))
        self.unknown_token = unknown_token
        self.tokens = [token.encode() for token in tokens]
        self.vocabulary_size = len(tokens)

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        options = parse_json(files[OPTIONS_FILE])
        lines = files[TOKENS_FILE].decode("ascii").split()
        characters = [chr(int(line.removeprefix("U+"), 16)) for line in lines]
        return cls(characters, unknown_token=options["unknown_token"])

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files: the code points, one on each line, and the options."""
        # Code points are written as numbers, because the line feed may be in the vocabulary.
        lines = [f"U+{ord(character):04X}\n" for character in self.characters]
        return {
            TOKENS_FILE: "".join(lines).encode(),
            OPTIONS_FILE: json_file({"unknown_token": self.unknown_token}),
        }

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        characters = decode_utf8(text)
        ids = self._ids[np.frombuffer(characters.encode("utf-32-le"), "<u4")]
        if self.unknown_id is None and (is_unknown := ids < 0).any():
            index = int(np.argmax(is_unknown))
            raise InvalidTextError(
                (
                    f"The character U+{ord(characters[index]):04X} is not in the vocabulary, "
                    "which has no token for unknown characters."
                ),
                text,
                len(characters[:index].encode()),
            )
        return ids.astype(self.token_dtype)

    def _decode(self, ids: np.ndarray) -> bytes:
        return b"".join(map(self.tokens.__getitem__, ids))
