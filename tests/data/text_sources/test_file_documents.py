import gzip

import pytest

from txl_tf.data.text_sources.file_documents import FileDocuments
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
