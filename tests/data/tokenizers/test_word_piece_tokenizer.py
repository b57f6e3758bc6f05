"""WordPiece tokenizer."""

from tests.data.tokenizers.hostile_texts import hostile_texts
from tests.data.tokenizers.spelled_word_piece import spelled_word_piece
from txl_tf.data.tokenizers.piece_tokenizers import SUFFIX_INDICATOR, WordPieceTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule

TEXT = b"\n".join(hostile_texts(60)).translate(None, b"\0<>")


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


def test_words_with_nul_are_unknown():
    tokenizer = spelled_word_piece(TEXT)
    assert tokenizer.decode_bytes(tokenizer.encode(b"a \0 a\0b a")) == b"a <unk> <unk> a"
