"""Text files for preparation: listing, decompression and UTF-8 validation."""

import bz2
import gzip
import json
import lzma
import os
import random
import re
import unicodedata

import pytest
import zstandard

from txl_tf.data.sources.text_files import (
    MAX_LINE_BYTES,
    TextDocuments,
    text_blocks,
    validated_text,
)
from txl_tf.data.sources.text_paths import text_files
from txl_tf.errors import DataDamagedError, InputMissingError, UsageError

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
def test_compressed_files_are_read_whatever_their_name_and_parts(tmp_path, kind):
    path = tmp_path / "text.txt"
    for text in (TEXT, b"", b"x", bytes(5_000_000)):
        path.write_bytes(COMPRESS[kind](text))
        assert read(path) == text
    path.write_bytes(b"".join(map(COMPRESS[kind], (TEXT, b"", b"end\n"))) + bytes(1024))
    assert read(path) == TEXT + b"end\n"


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_file_that_was_cut_is_refused_wherever_it_was_cut(tmp_path, kind):
    path = tmp_path / "text"
    compressed = COMPRESS[kind](TEXT)
    # With fewer bytes than the mark it is not known to be compressed.
    for length in [*range(6, 60), *range(60, len(compressed), 997), len(compressed) - 1]:
        path.write_bytes(compressed[:length])
        with pytest.raises(DataDamagedError, match=f"compressed data.*\n{path}, byte "):
            read(path)


@pytest.mark.parametrize("kind", COMPRESS)
def test_a_small_file_with_very_much_in_it_comes_in_small_blocks(tmp_path, kind):
    path = tmp_path / "text"
    path.write_bytes(COMPRESS[kind](bytes(100_000_000)))
    assert path.stat().st_size < 120_000
    sizes = [len(block) for block in text_blocks(str(path))]
    assert sum(sizes) == 100_000_000
    assert max(sizes) <= 70 << 20


@pytest.fixture
def folder(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a.txt", "b-c.txt", ".hidden/x.txt", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "empty").mkdir()
    return tmp_path


def names_of(folder, paths):
    return [os.path.relpath(path, folder) for path in text_files([str(path) for path in paths])]


def test_folders_are_read_by_name_and_files_and_patterns_in_their_order(folder):
    assert names_of(folder, [folder]) == ["a.txt", "b/1.txt", "b/2.txt", "b-c.txt"]
    paths = [folder / "b-c.txt", folder / ".hidden" / "x.txt", folder / "a.txt"]
    assert names_of(folder, paths) == ["b-c.txt", ".hidden/x.txt", "a.txt"]
    assert names_of(folder, [folder / "b*.txt"]) == ["b-c.txt"]
    assert names_of(folder, [folder / "**" / "[12].txt"]) == ["b/1.txt", "b/2.txt"]
    (folder / "odd[1].txt").write_text("text")
    assert names_of(folder, [folder / "odd[1].txt"]) == ["odd[1].txt"]


def test_a_path_without_files_a_pipe_and_a_file_named_twice_are_refused(folder):
    for name in ("absent", "empty", "*.none"):
        with pytest.raises(InputMissingError, match=re.escape(str(folder / name))):
            text_files([str(folder / name)])
    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match="a pipe or a device"):
        text_files([str(folder / "pipe")])
    os.unlink(folder / "pipe")
    (folder / "link").symlink_to(folder / "a.txt")
    for paths in ([folder / "a.txt", folder / "a.txt"], [folder]):
        with pytest.raises(UsageError, match=f"twice.*\n{folder}/a.txt"):
            text_files([str(path) for path in paths])


GOOD = "Zwölf Boxkämpfer jagen\nViktor über den\n€-Deich.\n"
WORDS = "".join(f"{word}\n" for word in ["plain text that is long enough"] * 50)

REFUSED = {
    "invalid byte": (b"one\ntwo\nth\xffree\n", 3, 10),
    "cut character": ("one\ntwo €".encode()[:-1], 2, 8),
    "lone surrogate": (b"one\ntwo \xed\xa0\x80", 2, 8),
    "Latin-1": ("one\nZwölf\n".encode("latin-1"), 2, 6),
    "UTF-16 with mark": (GOOD.encode("utf-16"), 1, 0),
    "UTF-32 with mark": (GOOD.encode("utf-32"), 1, 0),
    "UTF-16 without mark": (WORDS.encode("utf-16-le"), 1, 1),
    "UTF-16 without mark, the other way": (WORDS.encode("utf-16-be"), 1, 0),
}
KEPT = (
    "one\0two\r\nthree\rfour \ufeff\u2028\x85\x0b\x1c \ufffe\U0010ffff "
    + unicodedata.normalize("NFD", GOOD)
).encode()


def in_pieces(text, size):
    return [text[start : start + size] for start in range(0, len(text), size)]


@pytest.mark.parametrize("kind", REFUSED)
def test_text_that_is_not_utf8_is_refused_with_file_line_and_byte(kind):
    text, line, byte = REFUSED[kind]
    sizes = (len(text), 1, 2, 3, 5) if "without" not in kind else (len(text), 4096)
    for size in sizes:
        if "mark" in kind and size < 4:
            continue
        with pytest.raises(DataDamagedError, match=f"\na/file.txt, line {line}, byte {byte}\n"):
            list(validated_text(in_pieces(text, size), "a/file.txt"))


@pytest.mark.parametrize("text", [KEPT, b"x" * 3_000_000, b""], ids=len)
def test_text_is_kept_byte_for_byte(text):
    for size in (len(text) or 1, 1 if len(text) < 1000 else 4096):
        assert b"".join(validated_text(in_pieces(text, size), "file")) == text


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("text", [b"", b"o", b"one\n"])
def test_a_byte_order_mark_is_left_out(tmp_path, compress, text):
    (tmp_path / "file").write_bytes(compress(b"\xef\xbb\xbf" + text))
    assert b"".join(text_blocks(str(tmp_path / "file"))) == text


def documents(paths, content=None, **options):
    """The documents, each joined; `content` is written to the only path before."""
    if content is not None:
        paths.write_bytes(content)
    read_twice = TextDocuments([str(paths)], **options)
    texts = [b"".join(document) for document in read_twice]
    assert [b"".join(document) for document in read_twice] == texts
    return texts


def test_every_file_is_a_document_and_empty_ones_are_none(tmp_path):
    contents = {"a": b"one\n", "b": b"", "c": b"\xff\x00", "d": gzip.compress(b"four")}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert documents(tmp_path) == [b"one\n", b"\xff\x00", b"four"]
    assert documents(tmp_path, separator=b"") == [b"one\n", b"\xff\x00", b"four"]
    firsts = [next(document)[:1] for document in TextDocuments([str(tmp_path)])]
    assert firsts == [b"o", b"\xff", b"f"]


@pytest.mark.parametrize("options", [{}, {"one_per": "line"}, {"separator": b""}])
def test_utf8_is_checked_if_that_is_asked(tmp_path, options):
    text = "größer\n".encode() * 200_000 + b"\xff"
    assert documents(tmp_path / "text", text, **options)
    with pytest.raises(DataDamagedError, match=r"\n.*text, line 200001, byte 1800000\n"):
        documents(tmp_path / "text", check_utf8=True, **options)


TEXTS = ["one\n", "zwölf\u2028 \U0001f600", "", "back\\slash \x00", " x " * 1_500_000]


@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_texts_of_json_come_out_as_they_went_in(tmp_path, ensure_ascii):
    lines = [json.dumps({"id": 1, "body": text}, ensure_ascii=ensure_ascii) for text in TEXTS]
    content = b"\xef\xbb\xbf" + "\r\n\n".join(lines).encode()
    texts = documents(tmp_path / "texts.jsonl", content, json_field="body")
    assert texts == [text.encode() for text in TEXTS if text]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": ', "not JSON"),
        (b'["text"]', "must be a JSON object"),
        (b'{"body": "x", "id": 1}', "no field 'text'. Its fields: body, id"),
        (b'{"text": 3}', "must be text, not int"),
        (b'{"text": "\\ud800"}', "lone surrogate at character 0"),
        (b'{"text": "\xff"}', "can't decode byte 0xff in position 10"),
        (b'{"text": "' + b"x" * (MAX_LINE_BYTES + 2_000_000) + b'"}', "The line must have at most"),
    ],
    ids=range(7),
)
def test_a_line_without_a_text_is_named(tmp_path, line, message):
    content = b'{"text": "good"}\n\n' + line + b"\n"
    with pytest.raises(DataDamagedError, match=f"{message}.*\n.*x, line 3, byte 18\n"):
        documents(tmp_path / "x", content, json_field="text")


def test_every_line_is_a_document(tmp_path):
    text = b"one\n\n two\r\n\r\nthree\rfour\x0b\nlast"
    expected = [b"one\n", b" two\r\n", b"three\rfour\x0b\n", b"last"]
    assert documents(tmp_path / "text", text, one_per="line") == expected
    lines = [b"x " * 1_500_000 + b"\n", b"short\n", b"y" * 3_000_000 + b"\n"]
    assert documents(tmp_path / "text", b"".join(lines), one_per="line") == lines
    pieces = map(list, TextDocuments([str(tmp_path / "text")], one_per="line"))
    assert [len(document) > 1 for document in pieces] == [1, 0, 1]


MARK = b"<|endoftext|>"


@pytest.mark.parametrize(
    ("separator", "text", "expected"),
    [
        (MARK, b"one\n<|endoftext|>\ntwo\n", [b"one\n", b"two\n"]),
        (MARK, b"<|endoftext|>\none\n<|endoftext|>", [b"one\n"]),
        (MARK, b"one\n<|endoftext|>\n<|endoftext|>\r\ntwo", [b"one\n", b"two"]),
        (MARK, b"one\r\n<|endoftext|>\r\ntwo\r\n", [b"one\r\n", b"two\r\n"]),
        (MARK, b"one <|endoftext|>\n<|endoftext|> two\n", None),
        (MARK, b"one\n<|endoftext|>x\n", None),
        (MARK, b"<|endoftext|>\n", []),
        (b"", b"one\ntwo\n\nthree\n", [b"one\ntwo\n", b"three\n"]),
        (b"", b"\n\none\n\r\n\n\ntwo", [b"one\n", b"two"]),
        (b"", b"one\n \ntwo\n", None),
        (b"", b"\n\n\n", []),
    ],
)
def test_lines_that_are_the_separator_separate(tmp_path, separator, text, expected):
    texts = documents(tmp_path / "text", text, separator=separator)
    assert texts == ([text] if expected is None else expected)


def test_long_texts_are_separated_as_short_ones(tmp_path):
    generator = random.Random(6)
    texts = []
    for _ in range(200):
        lines = [generator.randbytes(generator.choice([10, 300])).hex() for _ in range(90)]
        texts.append("".join(f"{line}\n" for line in lines).encode())
    # The separator at the end of a very long line does not separate.
    texts[70] = b"x" * 2_500_000 + MARK + b"\n"
    texts[71] = b"x " * 1_500_000 + b"\n"
    assert documents(tmp_path / "text", (MARK + b"\n").join(texts), separator=MARK) == texts
