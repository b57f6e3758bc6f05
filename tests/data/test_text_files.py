"""Text files for preparation: listing, decompression and UTF-8 validation."""

import bz2
import gzip
import lzma
import os
import random
import unicodedata

import pytest
import zstandard

from txl_tf.data.text_files import text_blocks, text_files, validated_text
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError, UsageError

COMPRESS = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}
TEXT = b"".join(random.Random(2).choices([b"one ", b"two\n", b"three "], k=30_000))


def read(path):
    return b"".join(text_blocks(str(path)))


@pytest.mark.parametrize("kind", COMPRESS)
def test_compressed_files_are_read_whatever_their_name(tmp_path, kind):
    path = tmp_path / "text.txt"
    for text in (TEXT, b"", b"x", bytes(5_000_000)):
        path.write_bytes(COMPRESS[kind](text))
        assert read(path) == text


@pytest.mark.parametrize("kind", COMPRESS)
def test_several_parts_are_one_text(tmp_path, kind):
    path = tmp_path / "text"
    path.write_bytes(b"".join(COMPRESS[kind](part) for part in (TEXT, b"", b"end\n")))
    assert read(path) == TEXT + b"end\n"
    path.write_bytes(COMPRESS[kind](TEXT) + bytes(1024))
    assert read(path) == TEXT


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_file_that_was_cut_is_refused_wherever_it_was_cut(tmp_path, kind):
    path = tmp_path / "text"
    compressed = COMPRESS[kind](TEXT)
    # With fewer bytes than the mark it is not known to be compressed.
    for length in [*range(6, 60), *range(60, len(compressed), 997), len(compressed) - 1]:
        path.write_bytes(compressed[:length])
        with pytest.raises(DataDamagedError, match="compressed data") as caught:
            read(path)
        assert f"{path}, byte " in str(caught.value)


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_small_file_with_very_much_in_it_comes_in_small_blocks(tmp_path, kind):
    path = tmp_path / "text"
    size = 100_000_000 if kind == "zstd" else 8_000_000
    path.write_bytes(COMPRESS[kind](bytes(size)))
    assert path.stat().st_size < 50_000
    sizes = [len(block) for block in text_blocks(str(path))]
    assert sum(sizes) == size
    assert max(sizes) <= (70 << 20 if kind == "zstd" else 1 << 20)


def test_missing_files_and_folders_are_named(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputMissingError) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_without_the_package_for_zstd_the_error_names_it(tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(COMPRESS["zstd"](TEXT))
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(StorageError, match="zstandard is not installed"):
        read(path)


@pytest.fixture
def folder(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a.txt", "b-c.txt", ".hidden/x.txt", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "empty").mkdir()
    return tmp_path


def names_of(folder, paths):
    return [os.path.relpath(path, folder) for path in text_files([str(path) for path in paths])]


def test_folders_are_read_by_name_without_hidden_files(folder):
    expected = ["a.txt", "b/1.txt", "b/2.txt", "b-c.txt"]
    assert names_of(folder, [folder]) == expected


def test_files_keep_their_order_and_may_be_hidden(folder):
    paths = [folder / "b-c.txt", folder / ".hidden" / "x.txt", folder / "a.txt"]
    assert names_of(folder, paths) == ["b-c.txt", ".hidden/x.txt", "a.txt"]


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="a pipe or a device"):
        text_files([str(tmp_path / "pipe")])


def test_patterns_match_by_name(folder):
    assert names_of(folder, [folder / "b*.txt"]) == ["b-c.txt"]
    assert names_of(folder, [folder / "**" / "[12].txt"]) == ["b/1.txt", "b/2.txt"]
    (folder / "odd[1].txt").write_text("text")
    assert names_of(folder, [folder / "odd[1].txt"]) == ["odd[1].txt"]


@pytest.mark.parametrize("name", ["absent", "empty", "*.none"])
def test_a_path_without_files_is_named(folder, name):
    with pytest.raises(InputMissingError) as caught:
        text_files([str(folder / name)])
    assert str(folder / name) in str(caught.value)


def test_a_file_cannot_be_named_twice(folder):
    (folder / "link").symlink_to(folder / "a.txt")
    for paths in ([folder / "a.txt", folder / "a.txt"], [folder]):
        with pytest.raises(UsageError, match="twice") as caught:
            text_files([str(path) for path in paths])
        assert str(folder / "a.txt") in str(caught.value)


GOOD = "Zwölf Boxkämpfer jagen\nViktor über den\n€-Deich.\n"
WORDS = "".join(f"{word}\n" for word in ["plain text that is long enough"] * 50)

REFUSED = {
    "invalid byte": (b"one\ntwo\nth\xffree\n", 3, 10),
    "cut character": ("one\ntwo €".encode()[:-1], 2, 8),
    "continuation alone": (b"one\n\x80", 2, 4),
    "over-long form": (b"one\n\xc0\xaf", 2, 4),
    "lone surrogate": (b"one\ntwo \xed\xa0\x80", 2, 8),
    "beyond Unicode": (b"\xf4\x90\x80\x80", 1, 0),
    "Latin-1": ("one\nZwölf\n".encode("latin-1"), 2, 6),
    "UTF-16 with mark": (GOOD.encode("utf-16"), 1, 0),
    "UTF-32 with mark": (GOOD.encode("utf-32"), 1, 0),
    "UTF-16 without mark": (WORDS.encode("utf-16-le"), 1, 1),
    "UTF-16 without mark, the other way": (WORDS.encode("utf-16-be"), 1, 0),
}
KEPT = {
    "NUL": b"one\0two\nthree four five\n",
    "U+FEFF within": b"one\xef\xbb\xbf\n",
    "CR LF": b"one\r\ntwo\r\n",
    "CR": b"one\rtwo\r",
    "line ends of Unicode": "one\u2028two\u0085three\u2029four\x0bfive\x0csix\x1cseven".encode(),
    "combining characters": unicodedata.normalize("NFD", GOOD).encode(),
    "over-long word": b"x" * 3_000_000,
    "nothing": b"",
    "noncharacters": "\ufffe\uffff\U0010ffff".encode(),
}


def in_pieces(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_with_file_line_and_byte(kind):
    text, line, byte = REFUSED[kind]
    sizes = (len(text), 1, 2, 3, 5) if "without" not in kind else (len(text), 4096)
    for size in sizes:
        if "mark" in kind and size < 4:
            continue
        with pytest.raises(DataDamagedError) as caught:
            list(validated_text(in_pieces(text, size), "a/file.txt"))
        assert f"a/file.txt, line {line}, byte {byte}" in str(caught.value)
        assert caught.value.exit_code == 65
        assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("kind", KEPT)
def test_kept_byte_for_byte(kind):
    text = KEPT[kind]
    for size in (len(text) or 1, 1 if len(text) < 1000 else 4096):
        assert b"".join(validated_text(in_pieces(text, size), "file")) == text


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("text", [b"", b"o", b"one\n"])
def test_a_byte_order_mark_is_left_out(tmp_path, compress, text):
    (tmp_path / "file").write_bytes(compress(b"\xef\xbb\xbf" + text))
    assert b"".join(text_blocks(str(tmp_path / "file"))) == text
