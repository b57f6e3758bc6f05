"""The kinds of unusual text: what is refused, and that the rest is kept byte for byte."""

import random
import unicodedata

import pytest

from txl_tf.data.text_sources.text_validation import validated_text
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.errors import DataDamagedError

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
    "byte order mark": b"\xef\xbb\xbfone\n",
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


@pytest.mark.parametrize("kind", REFUSED | KEPT)
def test_the_byte_tokenizer_keeps_all_of_them(kind):
    text = REFUSED[kind][0] if kind in REFUSED else KEPT[kind]
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_random_binary_data_are_refused():
    data = random.Random(4).randbytes(1 << 20)
    with pytest.raises(DataDamagedError, match="file, line 1, byte "):
        list(validated_text(in_pieces(data, 65_536), "file"))


def test_every_place_of_a_bad_byte_is_found():
    good = (GOOD * 5).encode()
    generator = random.Random(5)
    for _ in range(300):
        place = generator.randrange(len(good))
        bad = good[:place] + b"\xff" + good[place:]
        with pytest.raises(UnicodeDecodeError) as expected:
            bad.decode()
        offset = expected.value.start
        line = bad.count(b"\n", 0, offset) + 1
        with pytest.raises(DataDamagedError) as caught:
            list(validated_text(in_pieces(bad, generator.randrange(1, 60)), "file"))
        assert f"file, line {line}, byte {offset}" in str(caught.value)


def test_what_was_read_before_is_passed_on():
    pieces = validated_text([b"good\n", b"bad\xff"], "file")
    assert next(pieces) == b"good\n"
    with pytest.raises(DataDamagedError):
        next(pieces)
