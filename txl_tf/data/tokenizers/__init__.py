"""Tokenizers by kind, and `load_tokenizer`."""

from collections.abc import Mapping

from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer, CharacterTokenizer
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.sentence_piece_tokenizer import SentencePieceTokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordTokenizer
from txl_tf.errors import DataDamagedError

_REMEDY = "Prepare the data set again."
TOKENIZERS = (
    ByteTokenizer,
    CharacterTokenizer,
    IdTokenizer,
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
