import pytest

from tests.data.tokenizers.hostile_texts import hostile_texts
from tests.data.tokenizers.official_words import official_lines
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


@pytest.mark.parametrize("marks", [{}, {"add_eos": True}, {"add_double_eos": True}], ids=str)
def test_decoding_gives_the_text_with_plain_white_space(marks):
    tokenizer = spelled_word_piece(TEXT, **marks)
    lines = [" ".join(line) for line in official_lines(TEXT)]
    expected = "".join(line + "\n" for line in lines)
    if not marks:
        expected = " ".join(line for line in lines if line)
    assert tokenizer.decode_bytes(tokenizer.encode(TEXT)) == expected.encode()


def test_words_with_nul_are_unknown():
    tokenizer = spelled_word_piece(TEXT)
    assert tokenizer.decode_bytes(tokenizer.encode(b"a \0 a\0b a")) == b"a <unk> <unk> a"


def test_the_fingerprint_never_changes():
    assert tiny().fingerprint == (
        "a87b58996b5d0eda62ce0c95be3f5650067c4e38dce292396ba412251f9ac95a"
    )


@pytest.mark.parametrize(
    ("pieces", "options", "message"),
    [
        (["a"], {"unknown_token": "?"}, "must have the `unknown_token`"),
        (["?", "a", "a"], {"unknown_token": "?"}, "must be different"),
        (["?", "a b"], {"unknown_token": "?"}, "without white space"),
        (["?", SUFFIX_INDICATOR], {"unknown_token": "?"}, "without white space"),
        (["?", "a\0"], {"unknown_token": "?"}, "must not contain NUL"),
    ],
)
def test_vocabularies_that_are_none_are_refused(pieces, options, message):
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer(pieces, WordRule(), **options)
