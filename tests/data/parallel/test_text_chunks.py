import random

from txl_tf.data.parallel import text_chunks as module
from txl_tf.data.parallel.text_chunks import text_chunks
from txl_tf.data.text_counts import TextCounts


def test_pieces_know_what_came_before():
    documents = [[b"a b", b"", b"c\r", b"\nd\n", b"e"], b"", b"x"]
    (chunk,) = text_chunks("train", iter(documents))
    assert [piece.text for piece in chunk] == [b"a b", b"c\r", b"\nd\n", b"e", b"", b"x"]
    assert [piece.document for piece in chunk] == [0, 0, 0, 0, 1, 2]
    assert [piece.begins_document for piece in chunk] == [True, False, False, False, True, True]
    assert [piece.ends_document for piece in chunk] == [False, False, False, True, True, True]
    assert [piece.begins_line for piece in chunk] == [True, False, True, True, True, True]
    assert [piece.splits_line_end for piece in chunk] == [False, False, True, False, False, False]
    assert [piece.continues_word for piece in chunk] == [False, True, False, False, False, False]
    assert [piece.offset_bytes for piece in chunk] == [0, 3, 5, 8, 0, 0]
    assert [piece.offset_lines for piece in chunk] == [0, 0, 0, 2, 0, 0]


def test_chunks_are_small_whatever_the_documents(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_BYTES", 100)
    documents = [b"line\n"] * 1000 + [[b"x" * 60] * 10]
    chunks = list(text_chunks("train", documents))
    sizes = [sum(len(piece.text) for piece in chunk) for chunk in chunks]
    assert sum(sizes) == 5600
    assert max(sizes) < 200
    many = list(text_chunks("train", [b""] * 10_000))
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
    for chunk_bytes, piece_bytes in ((1, 1), (7, 3), (50, 11), (10_000, 10_000)):
        monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
        pieces = [
            [each[start : start + piece_bytes] for start in range(0, len(each), piece_bytes)]
            for each in documents
        ]
        total = TextCounts()
        for chunk in text_chunks("train", pieces):
            total = total.plus(TextCounts.of(chunk))
        assert total == expected
