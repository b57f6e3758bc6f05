"""The tokenizer of SentencePiece models."""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from txl_tf.data.text_sources.text_pieces import text_pieces
from txl_tf.data.tokenizers.invalid_text_error import InvalidTextError
from txl_tf.data.tokenizers.piece_encoding import encode_pieces
from txl_tf.data.tokenizers.token_width import checked_token_ids, narrowest_token_dtype
from txl_tf.data.tokenizers.utf8_text import decode_utf8

if TYPE_CHECKING:
    from txl_tf.data.tokenizers.graph_sentence_piece_tokenizer import GraphSentencePieceTokenizer

# SentencePiece writes spaces as U+2581, and could not tell the two apart.
BLOCK_CHARACTER = "\u2581"
# No character at all: Unicode reserves it for use within a program.
BLOCK_SUBSTITUTE = "\U0010fffe"
_DEFINITION = b"txl-tf tokenizer; kind sentencepiece; version 1\n"
_MODEL_FILE = "vocabulary.model"


class SentencePieceTokenizer:
    """Reads text as the pieces of a SentencePiece model, BPE or unigram.

    Kudo and Richardson (2018); run by tensorflow-text, the same operation that
    an export has in its graph. With a model of `train_sentence_piece`,
    `decode(encode(text)) == text` for all text: white space and line ends are
    kept and rare characters are written as bytes. The one exception is refused:
    the noncharacter U+10FFFE. Lines are encoded by themselves, because no piece
    crosses a line end and a model that adds up scores would round differently.

    Args:
        model: bytes. The serialized model.

    Raises:
        ValueError: If the bytes are not a SentencePiece model.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes) -> None:
        self.model = model
        self.vocabulary_size = _num_pieces(model)
        self.token_dtype = narrowest_token_dtype(self.vocabulary_size)

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        """Builds the tokenizer that a data set keeps.

        Args:
            files: dict of name to content, as `vocabulary_files` gives it.

        Returns:
            The tokenizer.

        Raises:
            ValueError: If the files are not such a vocabulary.
        """
        return cls(files[_MODEL_FILE])

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files: the model in SentencePiece's own format."""
        return {_MODEL_FILE: self.model}

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of what defines the tokenizer."""
        return hashlib.sha256(_DEFINITION + self.model).hexdigest()

    def encode(self, text: bytes) -> np.ndarray:
        """Turns text into token ids.

        Args:
            text: bytes. UTF-8.

        Returns:
            Vector of type `token_dtype`.

        Raises:
            InvalidTextError: If the text is not UTF-8 or has U+10FFFE.
        """
        parts = list(self.encode_pieces(text_pieces([text])))
        return np.concatenate(parts) if parts else np.zeros(0, self.token_dtype)

    def encode_pieces(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Turns a document that comes in pieces into token ids.

        Args:
            pieces: iterable of bytes. The pieces of one document, cut where
                `text_pieces` cuts.

        Returns:
            Iterator over the token ids of every piece.

        Raises:
            InvalidTextError: As `encode`.
        """
        return encode_pieces(self._encode_piece, pieces)

    def _encode_piece(self, text: bytes) -> np.ndarray:
        decode_utf8(text)
        place = text.find(BLOCK_SUBSTITUTE.encode())
        if place >= 0:
            reason = "The text has U+10FFFE, which is no character."
            raise InvalidTextError.at(reason, text, place)
        lines = [line + b"\n" for line in text.split(b"\n")]
        lines[-1] = lines[-1][:-1]
        return self._graph_tokenizer.tokenize_lines(lines).values.numpy().astype(self.token_dtype)

    def decode(self, token_ids: np.ndarray | Sequence[int]) -> bytes:
        """Turns token ids back into text.

        Args:
            token_ids: vector of ints in `[0, vocabulary_size)`.

        Returns:
            The text, UTF-8. Bytes that form no character are written as
            U+FFFD; `encode` gives no such ids.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        ids = checked_token_ids(token_ids, self.vocabulary_size)
        import tensorflow as tf

        row = tf.RaggedTensor.from_row_lengths(ids.astype(np.int32), np.array([len(ids)], np.int64))
        return self._graph_tokenizer.detokenize(row).numpy()[0]

    def graph_tokenizer(self) -> "GraphSentencePieceTokenizer":
        """Returns the same tokenizer as TensorFlow operations."""
        return self._graph_tokenizer

    @functools.cached_property
    def _graph_tokenizer(self) -> "GraphSentencePieceTokenizer":
        from txl_tf.data.tokenizers.graph_sentence_piece_tokenizer import (
            GraphSentencePieceTokenizer,
        )

        return GraphSentencePieceTokenizer(self.model)


def _num_pieces(model: bytes) -> int:
    import tensorflow as tf
    import tensorflow_text

    try:
        return int(tensorflow_text.SentencepieceTokenizer(model=model).vocab_size())
    except tf.errors.OpError as error:
        raise ValueError(
            f"`model` must be a SentencePiece model. Received: {len(model)} bytes"
        ) from error
