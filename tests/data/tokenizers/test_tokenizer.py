import random

import numpy as np
import pytest

from tests.data.tokenizers.hostile_texts import hostile_texts, random_pieces
from txl_tf.data.tokenizers.tokenizer import InvalidTextError, encode_in_order


def lines_of(text, begins_line, ends_document):
    """A character for each line that begins or ends in the text."""
    text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    ends = text.count(b"\n")
    if ends_document and not text.endswith(b"\n") and (text or not begins_line):
        ends += 1
    return np.full(ends, 7)


def test_pieces_have_the_lines_of_the_whole():
    chosen = random.Random(3)
    for text in hostile_texts(500):
        pieces = random_pieces(text, chosen)
        whole = lines_of(text, True, True)
        assert sum(map(len, encode_in_order(lines_of, pieces))) == len(whole), pieces


def test_only_the_first_and_the_last_piece_are_told_so():
    seen = []

    def encode(text, begins_line, ends_document):
        seen.append((text, begins_line, ends_document))
        return np.zeros(0)

    list(encode_in_order(encode, [b"a", b"b\r", b"\nc\n", b"", b"d"]))
    assert seen == [
        (b"a", True, False),
        (b"b\r", False, False),
        (b"c\n", True, False),
        (b"", True, False),
        (b"d", True, True),
    ]
    assert list(encode_in_order(encode, [])) == []


@pytest.mark.parametrize("in_lines", [False, True])
def test_the_place_of_an_error_is_counted_from_the_document(in_lines):
    def encode(text, *_):
        if b"!" in text:
            raise InvalidTextError.at("No!", text, text.index(b"!"))
        return np.zeros(0)

    pieces = [b"one\ntwo\r", b"\n\nthree !"]
    encoded = encode_in_order(encode, pieces, in_lines)
    with pytest.raises(InvalidTextError) as caught:
        list(encoded)
    assert (caught.value.line, caught.value.offset_bytes) == (4, b"".join(pieces).index(b"!"))
    assert str(caught.value) == "No! Received: line 4, byte 16"
