"""WordPiece tokenizer whose pieces are single characters."""

from txl_tf.data.tokenizers.piece_tokenizers import SUFFIX_INDICATOR, WordPieceTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule


def spelled_word_piece(text, **marks):
    """Returns a tokenizer of every character of a text but NUL, first or later in a word."""
    rule = WordRule(**marks)
    letters = sorted({*b"".join(WordRule().split(text)).decode()} - {"\0"})
    pieces = ["<unk>", *filter(None, [rule.eos_token]), *letters]
    pieces += [SUFFIX_INDICATOR + letter for letter in letters]
    return WordPieceTokenizer(pieces, rule, unknown_token="<unk>")
