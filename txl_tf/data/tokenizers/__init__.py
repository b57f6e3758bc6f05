"""Tokenizers by kind, `load_tokenizer`, and the encoder of text batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from txl_tf.data.text import DocumentPiece, TextCounts
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer, CharacterTokenizer
from txl_tf.data.tokenizers.sentence_piece_tokenizer import SentencePieceTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer, damaged_text, map_pieces
from txl_tf.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordTokenizer
from txl_tf.errors import DataDamagedError

EncodedBatch = tuple[np.ndarray, np.ndarray, TextCounts]
"""Token ids, the int64 places among them where documents begin, and counts of the text. A place one
past the end stands for the next batch's first token."""
_REMEDY = "Prepare the data set again."
TOKENIZERS = (
    ByteTokenizer,
    CharacterTokenizer,
    WordTokenizer,
    WordPieceTokenizer,
    SentencePieceTokenizer,
)


def load_tokenizer(kind: str, files: Mapping[str, bytes], *, where: str = "") -> Tokenizer:
    """Builds a tokenizer from its vocabulary files, given as content by name.

    Raises DataDamagedError, with the folder `where`, if they are no vocabulary of that kind.
    """
    for tokenizer in TOKENIZERS:
        if tokenizer.kind == kind:
            try:
                return tokenizer.from_vocabulary_files(files)
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
                reason = " ".join(str(error).split())[:200]
                what = f"The vocabulary is not one of {kind}: {reason}"
                raise DataDamagedError(what, where=where, remedy=_REMEDY) from error
    known = ", ".join(tokenizer.kind for tokenizer in TOKENIZERS)
    what = f"There is no tokenizer of the kind {kind!r}, but: {known}."
    raise DataDamagedError(what, where=where, remedy=_REMEDY)


class BatchEncoder:
    """Encoder of text batches; only the tokenizer's kind and vocabulary are pickled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer: Tokenizer | None = tokenizer
        self._kind, self._files = tokenizer.kind, dict(tokenizer.vocabulary_files)

    def __getstate__(self) -> dict[str, Any]:
        # A worker loads it on first use, because some kinds import TensorFlow.
        return {**self.__dict__, "_tokenizer": None}

    def __call__(self, pieces: Sequence[DocumentPiece]) -> EncodedBatch:
        """Encodes at least one piece; raises DataDamagedError for text that cannot be encoded."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._kind, self._files)
        with damaged_text():
            parts = map_pieces(self._tokenizer.encode_piece, pieces, self._tokenizer.reads_lines)
        places = np.cumsum([0, *map(len, parts[:-1])], dtype=np.int64)
        starts = places[[piece.begins_document for piece in pieces]]
        return np.concatenate(parts), starts, TextCounts.of(pieces)
