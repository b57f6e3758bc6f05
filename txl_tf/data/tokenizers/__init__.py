"""Tokenizers by kind, and `load_tokenizer`."""

from collections.abc import Mapping

from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer, CharacterTokenizer
from txl_tf.data.tokenizers.piece_tokenizers import SentencePieceTokenizer, WordPieceTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.tokenizers.word_tokenizer import IdTokenizer, WordTokenizer
from txl_tf.errors import DataDamagedError

_REMEDY = "Restore the vocabulary from a copy, or prepare the data set again."
_TOKENIZERS: dict[str, type[Tokenizer]] = {
    "bytes": ByteTokenizer,
    "characters": CharacterTokenizer,
    "ids": IdTokenizer,
    "words": WordTokenizer,
    "wordpiece": WordPieceTokenizer,
    "sentencepiece": SentencePieceTokenizer,
}


def load_tokenizer(kind: str, files: Mapping[str, bytes], *, where: str = "") -> Tokenizer:
    """Builds a tokenizer from vocabulary files, content by name; DataDamagedError names `where`."""
    if kind not in _TOKENIZERS:
        raise DataDamagedError(
            f"The tokenizer must be one of: {', '.join(_TOKENIZERS)}. Received: {kind!r}",
            where=where,
            remedy=_REMEDY,
        )
    try:
        return _TOKENIZERS[kind].from_vocabulary_files(files)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        if isinstance(error, KeyError):  # whose text is the key alone
            reason = f"{reason} is missing"
        raise DataDamagedError(
            f"The vocabulary is not valid for the tokenizer {kind!r}: {reason}",
            where=where,
            remedy=_REMEDY,
        ) from error
