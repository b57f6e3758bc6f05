import pytest

from txl_tf.data.text_sources.line_documents import LineDocuments
from txl_tf.errors import DataDamagedError


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


def test_utf8_is_checked_where_that_is_asked(tmp_path, read_documents):
    path = tmp_path / "text"
    path.write_bytes(b"one\n\xe9\n")
    assert read_documents(LineDocuments([str(path)])) == [b"one\n", b"\xe9\n"]
    with pytest.raises(DataDamagedError, match="line 2, byte 4"):
        read_documents(LineDocuments([str(path)], check_utf8=True))
