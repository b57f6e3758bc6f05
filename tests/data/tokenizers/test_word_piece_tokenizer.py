"""WordPiece tokenizer."""

from txl_tf.data.tokenizers.piece_tokenizers import SUFFIX_INDICATOR, WordPieceTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule


def tiny():
    pieces = ["<unk>", "<eos>", "un", "aff", "able"]
    pieces += [SUFFIX_INDICATOR + "aff", SUFFIX_INDICATOR + "able", "#", SUFFIX_INDICATOR + "#"]
    rule = WordRule(add_eos=True)
    return WordPieceTokenizer(pieces, rule, unknown_token="<unk>")


def test_words_are_their_longest_beginnings():
    assert tiny().encode(b"unaffable able\nunx ##able").tolist() == [2, 5, 6, 4, 1, 0, 7, 8, 6, 1]
    assert tiny().decode_bytes([2, 5, 6, 4, 1, 0, 7, 8, 6, 1]) == b"unaffable able\n<unk> ##able\n"
    assert tiny().decode_bytes([5, 6, 4]) == b"affable able"
    assert tiny().encode(b"").tolist() == []
