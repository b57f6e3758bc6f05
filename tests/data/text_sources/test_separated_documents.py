import random

import pytest

from txl_tf.data.text_sources.separated_documents import SeparatedDocuments
from txl_tf.errors import DataDamagedError

MARK = b"<|endoftext|>"


def split(tmp_path, text, read_documents, separator=MARK):
    path = tmp_path / "text"
    path.write_bytes(text)
    return read_documents(SeparatedDocuments([str(path)], separator))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"one\n<|endoftext|>\ntwo\n", [b"one\n", b"two\n"]),
        (b"<|endoftext|>\none\n<|endoftext|>", [b"one\n"]),
        (b"one\n<|endoftext|>\n<|endoftext|>\r\ntwo", [b"one\n", b"two"]),
        (b"one\r\n<|endoftext|>\r\ntwo\r\n", [b"one\r\n", b"two\r\n"]),
        (b"one <|endoftext|>\n<|endoftext|> two\n", [b"one <|endoftext|>\n<|endoftext|> two\n"]),
        (b"one\n<|endoftext|>x\n", [b"one\n<|endoftext|>x\n"]),
        (b"<|endoftext|>\n", []),
        (b"", []),
    ],
)
def test_lines_that_are_the_separator_separate(tmp_path, read_documents, text, expected):
    assert split(tmp_path, text, read_documents) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"one\ntwo\n\nthree\n", [b"one\ntwo\n", b"three\n"]),
        (b"\n\none\n\r\n\n\ntwo", [b"one\n", b"two"]),
        (b"one\n \ntwo\n", [b"one\n \ntwo\n"]),
        (b"\n\n\n", []),
    ],
)
def test_empty_lines_can_separate(tmp_path, read_documents, text, expected):
    assert split(tmp_path, text, read_documents, b"") == expected


def test_long_texts_are_split_as_short_ones(tmp_path, read_documents):
    generator = random.Random(6)
    documents = []
    for _ in range(200):
        lines = [generator.randbytes(generator.choice([10, 300])).hex() for _ in range(90)]
        documents.append("".join(f"{line}\n" for line in lines).encode())
    # The separator at the end of a very long line does not separate.
    documents[70] = b"x" * 2_500_000 + MARK + b"\n"
    documents[71] = b"x " * 1_500_000 + b"\n"
    text = (MARK + b"\n").join(documents)
    assert split(tmp_path, text, read_documents) == documents


def test_files_begin_documents(tmp_path, read_documents):
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"two")
    assert read_documents(SeparatedDocuments([str(tmp_path)], b"")) == [b"one", b"two"]


def test_places_of_bad_text_are_those_in_the_file(tmp_path, read_documents):
    path = tmp_path / "text"
    path.write_bytes(b"one\n\ntwo\n\nthr\xffee\n")
    with pytest.raises(DataDamagedError, match="line 5, byte 13"):
        read_documents(SeparatedDocuments([str(path)], b"", check_utf8=True))


@pytest.mark.parametrize("separator", [b"two\nlines", b"x" * 2000])
def test_a_separator_must_be_a_line(tmp_path, separator):
    with pytest.raises(ValueError, match="Received: "):
        SeparatedDocuments([str(tmp_path)], separator)
