"""The first bytes of a file decide its kind; no container is read as text."""

import gzip
import io
import lzma
import os
import pickle
import zlib
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import tensorflow as tf
import zstandard
from pyarrow import feather, parquet

from tests.data.corpus_files import write_tar, write_zip
from txl_tf.data.sources.id_files import IdDocuments
from txl_tf.data.sources.text_files import TextDocuments, text_blocks
from txl_tf.errors import DataDamagedError

TEXTS = ["one text", "two\nlines", "", "the third"]
TABLE = pyarrow.table({"text": TEXTS, "ids": [[5, 6], [7], [], [8]], "column": [1, 2, 3, 4]})


def write_records(path):
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(tf.train.Example().SerializeToString() or b"\n\0")


def write_bytes(content):
    return lambda path: Path(path).write_bytes(content)


def write_arrays(save, *arrays):
    file = io.BytesIO()
    for array in arrays:
        save(file, array)
    return write_bytes(file.getvalue())


# The writer, and a word of the way to the text.
CONTAINERS = {
    "parquet": (lambda path: parquet.write_table(TABLE, path), "--format parquet --field NAME"),
    "arrow file": (lambda path: feather.write_feather(TABLE, path), "to_parquet"),
    "npy": (write_arrays(np.save, np.arange(9)), "--format ids"),
    "npz": (write_arrays(np.savez, np.arange(9)), "--format ids"),
    "tfrecord": (write_records, "--format jsonl"),
    "python objects": (write_bytes(pickle.dumps(TEXTS)), "--format jsonl"),
    "lzma": (write_bytes(lzma.compress(b"text" * 99, lzma.FORMAT_ALONE)), "xz -d"),
    "zlib": (write_bytes(zlib.compress(b"text and more" * 9)), "pigz -dc"),
    "compressed twice": (write_bytes(gzip.compress(gzip.compress(b"text"))), "Unpack"),
    "json lines": (write_bytes(b'{"text": "one"}\n{"text": "two"}\n'), "--format jsonl"),
    "lists of ids": (write_bytes(b"[1, 2, 3, 4, 5]\n[6]\n"), "--format jsonl"),
    "document": (lambda path: write_zip(path, {"[Content_Types].xml": b"<"}), "pandoc"),
    "samples": (lambda path: write_tar(path, {"0.txt": b"a", "0.cls": b"1"}), "tar xf"),
    "images": (lambda path: write_tar(path, {"0.jpg": b"\xff\xd8\xff"}), "Convert"),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_container_is_refused_with_the_way_to_its_text(tmp_path, kind):
    write, way = CONTAINERS[kind]
    write(str(tmp_path / "text"))
    (path,) = map(str, tmp_path.iterdir())
    # As the byte tokenizer reads it, which takes all other files.
    with pytest.raises(DataDamagedError) as error:
        [list(document) for document in TextDocuments([path])]
    assert way in error.value.remedy and path in error.value.where
    assert len(str(error.value).splitlines()) == 3
    if kind not in ("parquet", "npy", "npz", "lists of ids"):
        with pytest.raises(DataDamagedError):
            [list(document) for document in IdDocuments([path], 300)]


@pytest.mark.parametrize("text", [b"x^2 + y^2 = 1\n", b"{\n  'a': 1}\n", b"[1] A note.", b"PART I"])
def test_a_text_that_begins_almost_like_a_container_is_a_text(tmp_path, text):
    (tmp_path / "text").write_bytes(text)
    assert b"".join(text_blocks(str(tmp_path / "text"), may_be_json=False)) == text


@pytest.mark.parametrize("name", ["texts.zip", "texts.tar", "texts.tar.gz", "texts.tar.zst"])
def test_each_text_of_an_archive_is_a_document(tmp_path, name):
    path = str(tmp_path / name)
    contents = {"a/1.txt": b"\xef\xbb\xbfone\n", "a/.hidden": b"\xff", "b.txt": b""}
    write = write_zip if name.endswith("zip") else write_tar
    write(path, {**contents, "c": b"three" * 9999, "d.gz": gzip.compress(b"four")})
    if name in ("texts.tar", "texts.tar.zst"):
        content = gzip.decompress(Path(path).read_bytes())
        Path(path).write_bytes(zstandard.compress(content) if name.endswith("zst") else content)
    for _ in "ab":
        texts = [b"".join(document) for document in TextDocuments([path])]
        assert texts == [b"one\n", b"three" * 9999, b"four"]
    os.truncate(path, os.path.getsize(path) // 2)
    with pytest.raises(DataDamagedError):
        [b"".join(document) for document in TextDocuments([path])]


def test_columns_of_parquet_are_texts_or_ids(tmp_path):
    path = str(tmp_path / "table")
    parquet.write_table(TABLE, path)
    documents = TextDocuments([path], parquet_column="text")
    assert [b"".join(each).decode() for each in documents] == [text for text in TEXTS if text]
    for column, ids in {"ids": [b"5 6 ", b"7 ", b"8 "], "column": [b"1 2 3 4 "]}.items():
        assert [b"".join(each) for each in IdDocuments([path], 9, column)] == ids
    for column in (None, "body", "ids"):
        with pytest.raises(DataDamagedError, match=r"one of: text, ids|must hold text"):
            list(TextDocuments([path], parquet_column=column) if column else IdDocuments([path], 9))


def test_a_window_of_more_memory_is_not_called_damaged(tmp_path):
    settings = zstandard.ZstdCompressionParameters(window_log=28)
    encoder = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    (tmp_path / "text").write_bytes(encoder.compress(bytes(1 << 20)) + encoder.flush())
    with pytest.raises(DataDamagedError, match="more than 128 MiB of memory"):
        list(text_blocks(str(tmp_path / "text")))


ONE_DOCUMENT = {
    "lines": lambda path: np.savetxt(path, np.arange(50), fmt="%d"),
    "column": write_arrays(np.save, np.arange(50)[:, None]),
}


@pytest.mark.parametrize("kind", ONE_DOCUMENT)
def test_a_column_of_ids_is_one_document(tmp_path, kind):
    ONE_DOCUMENT[kind](tmp_path / "ids")
    (document,) = map(b"".join, IdDocuments([str(tmp_path / "ids")], 50))
    assert document.split() == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_arrays(np.save, np.arange(9), np.arange(9)), "more than one array"),
        (lambda path: np.arange(50, dtype=np.uint16).tofile(path), "np.fromfile"),
        (lambda path: np.savetxt(path, np.arange(50)), "fmt='%d'"),
        (lambda path: path.write_text("[5]\n[6]\n"), "No document has two ids"),
    ],
    ids=["two arrays", "raw", "floats", "one id each"],
)
def test_ids_that_would_be_split_or_lost_are_refused(tmp_path, write, message):
    write(tmp_path / "ids")
    with pytest.raises(DataDamagedError, match=message):
        list(map(b"".join, IdDocuments([str(tmp_path / "ids")], 99)))
