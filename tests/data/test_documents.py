"""Document sources: one document per file, per line, between separators, or JSON Lines."""

import gzip
import json
import random

import pytest

from txl_tf.data.documents import (
    MAX_LINE_BYTES,
    FileDocuments,
    JsonLinesDocuments,
    LineDocuments,
    SeparatedDocuments,
)
from txl_tf.errors import DataDamagedError, InputMissingError


def test_every_file_is_a_document_and_empty_ones_are_none(tmp_path, read_documents):
    contents = {"a": b"one\n", "b": b"", "c": b"\xff\x00", "d": gzip.compress(b"four")}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    documents = FileDocuments([str(tmp_path)])
    assert read_documents(documents) == [b"one\n", b"\xff\x00", b"four"]
    assert read_documents(documents) == [b"one\n", b"\xff\x00", b"four"]


def test_a_document_that_is_not_read_is_skipped(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(name * 3_000_000)
    firsts = [next(document)[:1] for document in FileDocuments([str(tmp_path)])]
    assert firsts == [b"a", b"b", b"c"]


def test_utf8_is_checked_where_that_is_asked(tmp_path, read_documents):
    (tmp_path / "good").write_bytes("größer\n".encode())
    bad = tmp_path / "later"
    bad.write_bytes("größer\n".encode() * 200_000 + b"\xff")
    documents = FileDocuments([str(tmp_path)], check_utf8=True)
    with pytest.raises(DataDamagedError) as caught:
        read_documents(documents)
    assert f"{bad}, line 200001, byte 1800000" in str(caught.value)
    bad.unlink()
    with pytest.raises(InputMissingError):
        read_documents(documents)


TEXTS = ["one\n", "zwölf\u2028 \U0001f600", "", "back\\slash \x00", " x " * 1_500_000]


@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_texts_come_out_as_they_went_in(tmp_path, read_documents, ensure_ascii):
    path = tmp_path / "texts.jsonl"
    lines = [json.dumps({"id": 1, "body": text}, ensure_ascii=ensure_ascii) for text in TEXTS]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\n".join(lines).encode())
    documents = JsonLinesDocuments([str(path)], "body")
    expected = [text.encode() for text in TEXTS if text]
    assert read_documents(documents) == expected
    assert read_documents(documents) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": ', "not JSON"),
        (b'["text"]', "not a JSON object"),
        (b'{"body": "x", "id": 1}', "no field 'text', but: body, id"),
        (b'{"text": 3}', "must be a string, not int"),
        (b'{"text": "\\ud800"}', "lone surrogate at character 0"),
        (b'{"text": "\xff"}', "not UTF-8, from its byte 10"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_line_without_a_text_is_named(tmp_path, read_documents, line, message):
    path = tmp_path / "texts.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line + b"\n")
    with pytest.raises(DataDamagedError, match=message) as caught:
        read_documents(JsonLinesDocuments([str(path)]))
    assert f"{path}, line 3, byte 18" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


def test_a_line_that_is_too_long_for_the_memory_is_named(tmp_path, read_documents):
    path = tmp_path / "texts.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"text": "good"}\n{"text": "')
        file.write(b"x" * (MAX_LINE_BYTES + 2_000_000) + b'"}\n')
    with pytest.raises(DataDamagedError, match=f"longer than {MAX_LINE_BYTES}") as caught:
        read_documents(JsonLinesDocuments([str(path)]))
    assert f"{path}, line 2, byte 17" in str(caught.value)


def test_every_line_is_a_document(tmp_path, read_documents):
    path = tmp_path / "text"
    path.write_bytes(b"one\n\n two\r\n\r\nthree\rfour\x0b\nlast")
    expected = [b"one\n", b" two\r\n", b"three\rfour\x0b\n", b"last"]
    assert read_documents(LineDocuments([str(path)])) == expected


def test_long_lines_are_one_document_in_several_pieces(tmp_path, read_documents):
    path = tmp_path / "text"
    lines = [b"x " * 1_500_000 + b"\n", b"short\n", b"y" * 3_000_000 + b"\n"]
    path.write_bytes(b"".join(lines))
    assert read_documents(LineDocuments([str(path)])) == lines
    assert [len(list(document)) > 1 for document in LineDocuments([str(path)])] == [1, 0, 1]


def test_line_documents_utf8_is_checked_where_that_is_asked(tmp_path, read_documents):
    path = tmp_path / "text"
    path.write_bytes(b"one\n\xe9\n")
    assert read_documents(LineDocuments([str(path)])) == [b"one\n", b"\xe9\n"]
    with pytest.raises(DataDamagedError, match="line 2, byte 4"):
        read_documents(LineDocuments([str(path)], check_utf8=True))


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
