"""Corpora enwik8 and text8, both from one dump of the English Wikipedia."""

import random
import types

import pytest

from tests.data.corpora.synthetic import (
    archive_of,
    like,
    resized,
    texts_of,
    write_folder,
    write_zip,
)
from txl_tf.data.corpora import enwik8_text8
from txl_tf.data.corpora.enwik8_text8 import Enwik8, Text8
from txl_tf.errors import DataDamagedError, InputMissingError


def wikipedia(num_bytes):
    generator = random.Random(7)
    text = b"<mediawiki>\n  <siteinfo>\n  </siteinfo>\n"
    while len(text) < num_bytes:
        words = "\n".join(generator.choices(["bar", "größe", "  ", "<page>", "", "x" * 70], k=30))
        text += b"  <page>\n    <title>" + words.encode() + b"</title>\n  </page>\n"
    return text[:num_bytes]


TEXT = wikipedia(100_000)
SPLITS = {"train": 90_000, "valid": 5_000, "test": 5_000}


@pytest.fixture
def small_class():
    return like(Enwik8, member=resized(Enwik8.member, TEXT), split_bytes=SPLITS)


@pytest.fixture
def small(tmp_path, small_class):
    """The class, and its text as archive, folder and file."""
    path = write_zip(tmp_path / "enwik8.zip", {"enwik8": TEXT})
    folder = write_folder(tmp_path / "folder", {"enwik8": TEXT})
    return archive_of(small_class, path), [path, folder, folder / "enwik8"]


def test_the_splits_are_the_official_ones(small):
    corpus_class, paths = small
    for path in paths:
        splits = texts_of(corpus_class(newlines="keep").splits(str(path)))
        assert b"".join(splits["train"]) == TEXT[:90_000]
        assert b"".join(splits["valid"]) == TEXT[90_000:95_000]
        assert b"".join(splits["test"]) == TEXT[95_000:]


def official_tokens(part):
    """What the official script and reader make of a part, from their description.

    Byte numbers with spaces between them, newlines as such; read line by line
    and split at white space.
    """
    written = " ".join(str(value) if value != ord("\n") else "\n" for value in part)
    return [int(word) for line in written.split("\n") for word in line.split()]


def test_without_newlines_the_tokens_are_those_of_the_official_script(small):
    corpus_class, paths = small
    splits = corpus_class().splits(str(paths[0]))
    start = 0
    for name, size in SPLITS.items():
        text = b"".join(texts_of(splits)[name])
        assert list(text) == official_tokens(TEXT[start : start + size])
        start += size


def test_pages_are_documents(small):
    corpus_class, paths = small
    splits = texts_of(corpus_class(newlines="keep").splits(str(paths[0])))
    assert sum(map(len, splits.values())) == TEXT.count(b"\n  <page>\n") + 3
    for documents in splits.values():
        assert all(page.startswith(b"  <page>\n    <title>") for page in documents[1:])
        assert not any(b"\n  <page>\n" in page for page in documents)
    for name, documents in texts_of(corpus_class().splits(str(paths[0]))).items():
        assert documents == [page.replace(b"\n", b"") for page in splits[name]]


def test_what_is_known_of_the_vocabulary():
    assert Enwik8(newlines="keep").vocabulary_sizes == (205,)
    assert Enwik8().vocabulary_sizes == (204,)
    assert Enwik8().tokenizer_options.kind == "bytes"
    assert sum(Enwik8.split_bytes.values()) == 100_000_000 == Enwik8.member.size_bytes
    with pytest.raises(ValueError, match="Received: 'lose'"):
        Enwik8(newlines="lose")


def test_another_text_is_refused(tmp_path, small_class):
    other = TEXT[:-1] + b"x"
    path = write_zip(tmp_path / "enwik8.zip", {"enwik8": other})
    for source, message in (
        (path, r"enwik8\.zip must have 36445475 bytes"),
        (write_folder(tmp_path / "a", {"enwik8": other}), "enwik8 must have SHA-256"),
        (write_folder(tmp_path / "b", {"enwik8": TEXT[:-1]}), "enwik8 must have 100000 bytes"),
        (tmp_path / "a" / "enwik8", "enwik8 must have SHA-256"),
    ):
        with pytest.raises(DataDamagedError, match=message) as caught:
            small_class().splits(str(source))
        assert str(source) in str(caught.value)
    for source in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputMissingError):
            small_class().splits(str(source))


def test_a_cut_archive_is_refused(tmp_path, small):
    corpus_class, (path, *_) = small
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataDamagedError, match=r"enwik8\.zip must have"):
        corpus_class().splits(str(path))


TEST_TEXT8_SPLITS = {"train": 2_400_000, "valid": 100, "test": 7}
# Spaces at both ends of train, at the beginning of valid, and at no end of test.
TEST_TEXT8_TEXT = (
    b" " + b"anarchism " * 239_999 + b"ends here" + b" valid" * 16 + b"also" + b"ends ok"
)


@pytest.fixture
def small_of_text8(tmp_path):
    assert len(TEST_TEXT8_TEXT) == sum(TEST_TEXT8_SPLITS.values())
    path = write_zip(tmp_path / "text8.zip", {"text8": TEST_TEXT8_TEXT})
    corpus_class = like(
        Text8, member=resized(Text8.member, TEST_TEXT8_TEXT), split_bytes=TEST_TEXT8_SPLITS
    )
    return archive_of(corpus_class, path)(), str(path)


def test_spaces_at_the_ends_of_a_split_are_taken_off(small_of_text8):
    corpus, path = small_of_text8
    start = 0
    splits = texts_of(corpus.splits(path))
    assert list(splits) == ["train", "valid", "test"]
    for name, size in TEST_TEXT8_SPLITS.items():
        assert splits[name] == [TEST_TEXT8_TEXT[start : start + size].strip()]
        start += size
    assert len(splits["train"][0]) == TEST_TEXT8_SPLITS["train"] - 1
    assert len(splits["valid"][0]) == TEST_TEXT8_SPLITS["valid"] - 1
    assert len(splits["test"][0]) == TEST_TEXT8_SPLITS["test"]


def test_splits_can_be_read_twice(small_of_text8):
    corpus, path = small_of_text8
    splits = corpus.splits(path)
    assert texts_of(splits) == texts_of(splits)


def test_what_is_known_of_it():
    assert Text8().vocabulary_sizes == (27,)
    assert Text8().tokenizer_options.kind == "characters"
    assert sum(Text8.split_bytes.values()) == 100_000_000 == Text8.member.size_bytes


def test_a_stream_that_is_too_short_is_named():
    blocks = {"text8": [bytes(200)]}
    files = types.SimpleNamespace(blocks=lambda member: blocks[member.path])
    member = types.SimpleNamespace(path="text8")
    with pytest.raises(DataDamagedError, match="must have 201 bytes, but has 200") as caught:
        list(enwik8_text8._stretch(files, member, 10, 201))
    assert "text8" in str(caught.value)
