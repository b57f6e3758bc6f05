import random

import pytest

from txl_tf.data.text_sources.text_pieces import text_pieces


def in_blocks(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)]


def random_lines(generator, num_bytes):
    lines = []
    while sum(map(len, lines)) < num_bytes:
        lines.append(generator.randbytes(generator.choice([0, 3, 20, 200])) + b"\n")
    return b"".join(lines)


def test_pieces_are_the_text_and_depend_on_nothing_else():
    generator = random.Random(1)
    for _ in range(50):
        text = random_lines(generator, 2000)
        expected = list(text_pieces([text], 256))
        assert b"".join(expected) == text
        assert all(0 < len(piece) <= 256 for piece in expected)
        for size in (1, 7, 100, 5000):
            assert list(text_pieces(in_blocks(text, size), 256)) == expected


def test_lines_that_are_short_enough_are_never_cut():
    lines = [b"x" * (index % 120) + b"\n" for index in range(500)]
    pieces = list(text_pieces([b"".join(lines)], 256))
    assert all(piece.endswith(b"\n") for piece in pieces)


@pytest.mark.parametrize("character", ["é", "€", "𐍈", "e"])
def test_long_lines_are_cut_at_spaces_and_long_words_between_characters(character):
    for word_characters, end in ((20, b" "), (5000, character.encode())):
        text = " ".join([character * word_characters] * 200).encode()
        pieces = list(text_pieces([text], 257))
        assert b"".join(pieces) == text
        for piece in pieces:
            piece.decode()
        ends = [piece.endswith(end) for piece in pieces[:-1]]
        assert sum(ends) / len(ends) > 0.9


def test_bytes_that_are_no_characters_are_cut_anywhere():
    text = b"\x80" * 5000
    assert b"".join(text_pieces([text], 64)) == text


def test_nothing_has_no_pieces():
    assert list(text_pieces([])) == list(text_pieces([b"", b""])) == []


def test_pieces_too_small_for_a_character_are_refused():
    with pytest.raises(ValueError, match="Received: 7"):
        list(text_pieces([b"text"], 7))
