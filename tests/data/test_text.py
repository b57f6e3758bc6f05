"""Units of text during preparation: documents, their pieces, work batches and counts."""

import random

import pytest

from txl_tf.data import text as module
from txl_tf.data.text import TextCounts, split_at_lines, work_batches


def test_pieces_know_their_place_in_the_text():
    documents = [[b"a b", b"", b"c\r", b"\nd\n", b"e"], b"", b"x"]
    (batch,) = work_batches("train", iter(documents))
    assert [piece.text for piece in batch] == [b"a b", b"c", b"\r\nd\n", b"e", b"", b"x"]
    assert [piece.document for piece in batch] == [0, 0, 0, 0, 1, 2]
    assert [piece.begins_document for piece in batch] == [True, False, False, False, True, True]
    assert [piece.ends_document for piece in batch] == [False, False, False, True, True, True]
    assert [piece.begins_line for piece in batch] == [True, False, False, True, True, True]
    assert [piece.continues_word for piece in batch] == [False, True, True, False, False, False]
    assert [piece.offset_bytes for piece in batch] == [0, 3, 4, 8, 0, 0]
    assert [piece.offset_lines for piece in batch] == [0, 0, 0, 2, 0, 0]


def test_chunks_are_small_whatever_the_documents(monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 100)
    documents = [b"line\n"] * 1000 + [[b"x" * 60] * 10]
    batches = list(work_batches("train", documents))
    sizes = [sum(len(piece.text) for piece in batch) for batch in batches]
    assert sum(sizes) == 5600
    assert max(sizes) < 200
    many = list(work_batches("train", [b""] * 10_000))
    assert max(map(len, many)) <= 4096
    assert sum(map(len, many)) == 10_000


def test_counts_do_not_depend_on_pieces_and_chunks(monkeypatch):
    randomness = random.Random(7)
    words = ["one", "zw\u00f6lf", "\u20ac", " ", "\n", "\t", "\r\n", ""]
    documents = [
        "".join(randomness.choices(words, k=randomness.randrange(30))).encode() for _ in range(60)
    ]
    expected = TextCounts(
        bytes=sum(map(len, documents)),
        characters=sum(len(document.decode()) for document in documents),
        words=sum(len(document.split()) for document in documents),
        documents=60,
    )
    for batch_bytes, piece_bytes in ((1, 1), (7, 3), (50, 11), (10_000, 10_000)):
        monkeypatch.setattr(module, "BATCH_BYTES", batch_bytes)
        pieces = [in_blocks(document, piece_bytes) for document in documents]
        batches = work_batches("train", pieces)
        assert TextCounts.total(map(TextCounts.of, batches)) == expected


def in_blocks(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)]


def test_pieces_are_the_text_end_with_lines_and_depend_on_nothing_else():
    generator = random.Random(1)
    for _ in range(50):
        sizes = generator.choices([0, 3, 20, 120], k=40)
        text = b"".join(b"x" * size + b"\n" for size in sizes)
        expected = list(split_at_lines([text], 256))
        assert b"".join(expected) == text
        assert all(len(piece) <= 256 and piece.endswith(b"\n") for piece in expected)
        for size in (1, 7, 100, 5000):
            assert list(split_at_lines(in_blocks(text, size), 256)) == expected


@pytest.mark.parametrize("character", ["é", "€", "𐍈", "e"])
def test_long_lines_are_cut_at_spaces_and_long_words_between_characters(character):
    for word_characters, end in ((20, b" "), (5000, character.encode())):
        text = " ".join([character * word_characters] * 200).encode()
        pieces = list(split_at_lines([text], 257))
        assert b"".join(pieces) == text
        for piece in pieces:
            piece.decode()
        ends = [piece.endswith(end) for piece in pieces[:-1]]
        assert sum(ends) / len(ends) > 0.9
