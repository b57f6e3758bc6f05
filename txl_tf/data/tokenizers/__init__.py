"""Tokenizers of all kinds, and `load_tokenizer`, which builds one from its stored files."""

from collections.abc import Mapping

from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.piece_tokenizers import SentencePieceTokenizer, WordPieceTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordTokenizer
from txl_tf.errors import DataDamagedError, errors_as

_REMEDY = "Restore the vocabulary from a copy, or prepare the data set again."
# A file may be missing, may not be JSON or UTF-8, or may have values of wrong types.
_ERRORS_OF_FILES = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
_TOKENIZERS: dict[str, type[Tokenizer]] = {
    "bytes": ByteTokenizer,
    "characters": CharacterTokenizer,
    "ids": IdTokenizer,
    "words": WordTokenizer,
    "wordpiece": WordPieceTokenizer,
    "sentencepiece": SentencePieceTokenizer,
}


def load_tokenizer(kind: str, files: Mapping[str, bytes], *, where: str = "") -> Tokenizer:
    """Builds a tokenizer from the contents of its vocabulary files by name.

    Raises DataDamagedError, with the place `where`, for an unknown kind or invalid files.
    """
    if kind not in _TOKENIZERS:
        raise DataDamagedError(
            f"The tokenizer must be one of: {', '.join(_TOKENIZERS)}. Received: {kind!r}",
            where=where,
            remedy=_REMEDY,
        )
    with errors_as(
        DataDamagedError,
        _ERRORS_OF_FILES,
        f"A file of the vocabulary is missing or not valid for the tokenizer {kind!r}",
        where,
        _REMEDY,
    ):
        return _TOKENIZERS[kind].from_vocabulary_files(files)
