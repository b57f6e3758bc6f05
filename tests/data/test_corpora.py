"""Published corpora: their documents, counts and refusals."""

import dataclasses
import functools
import hashlib
import random
import types

import pytest

from tests.data.corpus_files import (
    of_archive,
    of_files,
    texts_of,
    write_folder,
    write_tar,
    write_zip,
)
from txl_tf.data.corpora import (
    CORPORA,
    enwik8,
    lm1b,
    penn_treebank,
    text8,
    wikitext2,
    wikitext_articles,
)
from txl_tf.data.standard_library import python_standard_library_splits
from txl_tf.data.vocabulary_training import SentencePieceTraining
from txl_tf.errors import DataDamagedError, InputMissingError

UNITS = ("bytes", "characters", "words", "documents", "tokens")


def as_expected(corpus):
    """Splits with the published counts."""
    return [
        types.SimpleNamespace(name=name, **{**dict.fromkeys(UNITS, 0), **counts})
        for name, counts in corpus.counts.items()
    ]


@pytest.mark.parametrize("name", CORPORA)
def test_published_counts_are_accepted_and_others_refused(name):
    corpus = CORPORA[name](**({"newlines": "keep"} if name == "enwik8" else {}))
    assert corpus.name == name and list(corpus.counts) == ["train", "valid", "test"]
    assert corpus.archive.sha256 or all(member.sha256 for member in corpus.members)
    splits = as_expected(corpus)
    check = functools.partial(corpus.check_counts, corpus.tokenizer)
    for size in corpus.vocabulary_sizes:
        check(splits, size)
    with pytest.raises(DataDamagedError, match="vocabulary must have"):
        check(splits, size + 1)
    for split in splits:
        for unit, wanted in corpus.counts[split.name].items():
            setattr(split, unit, wanted + 1)
            message = f"number of {unit} must be {wanted}, .*\ncorpus {name}, split {split.name}\n"
            with pytest.raises(DataDamagedError, match=message):
                check(splits, size)
            if unit == "tokens":
                corpus.check_counts(SentencePieceTraining(), splits, size + 1)
            setattr(split, unit, wanted)


def wikipedia(num_bytes):
    generator = random.Random(7)
    text = b"<mediawiki>\n  <siteinfo>\n  </siteinfo>\n"
    while len(text) < num_bytes:
        words = "\n".join(generator.choices(["bar", "größe", "  ", "<page>", "", "x" * 70], k=30))
        text += b"  <page>\n    <title>" + words.encode() + b"</title>\n  </page>\n"
    return text[:num_bytes]


WIKIPEDIA = wikipedia(100_000)
PARTS = {"train": WIKIPEDIA[:90_000], "valid": WIKIPEDIA[90_000:95_000], "test": WIKIPEDIA[95_000:]}


@pytest.fixture
def enwik8_paths(tmp_path):
    """The text as archive, folder and file."""
    path = write_zip(tmp_path / "enwik8.zip", {"enwik8": WIKIPEDIA})
    folder = write_folder(tmp_path / "folder", {"enwik8": WIKIPEDIA})
    return [path, folder, folder / "enwik8"]


def small_enwik8(path, newlines):
    return of_archive(of_files(enwik8(newlines), {"enwik8": WIKIPEDIA}), path)


def test_pages_of_enwik8_are_documents_of_the_official_splits(enwik8_paths):
    for path in enwik8_paths:
        splits = small_enwik8(enwik8_paths[0], "keep").splits(str(path))
        texts = texts_of(splits)
        assert {name: b"".join(pages) for name, pages in texts.items()} == PARTS
        assert texts_of(splits) == texts
    assert sum(map(len, texts.values())) == WIKIPEDIA.count(b"\n  <page>\n") + 3
    for pages in texts.values():
        assert all(page.startswith(b"  <page>\n    <title>") for page in pages[1:])
        assert not any(b"\n  <page>\n" in page for page in pages)
    without = texts_of(small_enwik8(enwik8_paths[0], "drop").splits(str(enwik8_paths[0])))
    for name, pages in texts.items():
        assert without[name] == [page.replace(b"\n", b"") for page in pages]
        assert list(b"".join(without[name])) == official_tokens(PARTS[name])


def official_tokens(part):
    """What the official script and reader make of a part, from their description.

    Byte numbers with spaces between them, newlines as such; read line by line
    and split at white space.
    """
    output = " ".join(str(value) if value != ord("\n") else "\n" for value in part)
    return [int(word) for line in output.split("\n") for word in line.split()]


def test_another_text_is_refused(enwik8_paths):
    corpus = of_files(enwik8(), {"enwik8": WIKIPEDIA[:-1] + b"x"})
    messages = (r"enwik8\.zip must have 36445475 bytes", *2 * ["enwik8 must have SHA-256"])
    for source, message in zip(enwik8_paths, messages, strict=True):
        with pytest.raises(DataDamagedError, match=rf"{message}[^\n]*\n{source}"):
            corpus.splits(str(source))


def test_spaces_at_the_ends_of_a_split_of_text8_are_taken_off(tmp_path):
    # Spaces at both ends of train, at the beginning of valid, and at no end of test.
    text = b" " + b"anarchism " * 2_699 + b"ends here" + b" valid" * 250 + b"x" * 1500
    path = write_zip(tmp_path / "text8.zip", {"text8": text})
    splits = texts_of(of_archive(of_files(text8(), {"text8": text}), path).splits(str(path)))
    parts = text[:27_000], text[27_000:28_500], text[28_500:]
    assert list(splits.values()) == [[part.strip()] for part in parts]
    assert [len(part) - len(part.strip()) for part in parts] == [1, 1, 0]


ARTICLE = b" \n = Title %d = \n \n Some = text = of it . \n \n = = Part = = \n \n More . \n"


def articles(*numbers):
    return b"".join(ARTICLE % number for number in numbers)


WIKITEXT = {
    "wikitext-2/wiki.train.tokens": articles(*range(60)),
    "wikitext-2/wiki.valid.tokens": articles(1, 2),
    "wikitext-2/wiki.test.tokens": articles(3),
}


def test_articles_of_wikitext_are_documents(tmp_path):
    path = write_zip(tmp_path / "wikitext-2-v1.zip", WIKITEXT)
    corpus = of_archive(of_files(wikitext2(), WIKITEXT), path)
    expected = {
        "train": [ARTICLE % number for number in range(60)],
        "valid": [ARTICLE % 1, ARTICLE % 2],
        "test": [ARTICLE % 3],
    }
    whole = write_folder(tmp_path / "whole", WIKITEXT)
    renamed = {f"{name.split('.')[1]}.txt": content for name, content in WIKITEXT.items()}
    for source in (path, whole, whole / "wikitext-2", write_folder(tmp_path / "new", renamed)):
        assert texts_of(corpus.splits(str(source))) == expected


@pytest.mark.parametrize("num_lines", [1, 3, 1000])
def test_only_titles_between_blank_lines_begin_articles_whatever_the_pieces(num_lines):
    before = (
        b"no blank line before\n = No title = \n \n"
        b" \n = Title = \n text\n \n = = Heading = = \n \n = Not one\n \n Nor = this = \n"
    )
    parts = [before, b" \n = Title = \n \n last line\n", *(ARTICLE % number for number in range(9))]
    lines = b"".join(parts).splitlines(keepends=True)
    starts = range(0, len(lines), num_lines)
    pieces = [b"".join(lines[start : start + num_lines]) for start in starts]
    assert [b"".join(article) for article in wikitext_articles(pieces)] == parts
    assert list(wikitext_articles([b""])) == []


def test_penn_treebank_is_read_from_its_archive(tmp_path):
    texts = {
        "train": b" no it was n't <unk> \n" * 100,
        "valid": b" may want to \n",
        "test": b" no \n",
    }
    files = {f"simple-examples/data/ptb.{name}.txt": text for name, text in texts.items()}
    path = write_tar(tmp_path / "simple-examples.tgz", files | {"simple-examples/readme": b"x"})
    corpus = of_archive(of_files(penn_treebank(), files), path)
    assert texts_of(corpus.splits(str(path))) == {name: [text] for name, text in texts.items()}


TRAINING = [f"news.en-{index:05d}-of-00100" for index in range(1, 7)]
HELD_OUT = "news.en.heldout-00000-of-00050"


def sentences(shard, count=50):
    return [b"Sentence %d of shard %d .\n" % (index, shard) for index in range(count)]


@pytest.fixture
def lm1b_folder(tmp_path):
    files = {name: b"".join(sentences(shard)) for shard, name in enumerate(TRAINING)}
    return write_folder(tmp_path, files | {HELD_OUT: b"Held out .\nIn order .\n"})


def small_lm1b():
    corpus = lm1b()
    assert len(corpus.members) == 100
    return dataclasses.replace(corpus, members=(*corpus.members[:6], corpus.members[-1]))


def lm1b_lines(folder):
    train = texts_of(small_lm1b().splits(str(folder)))["train"]
    return [document.splitlines(keepends=True) for document in train]


def test_every_sentence_is_there_once_in_a_fixed_random_order(lm1b_folder):
    train = lm1b_lines(lm1b_folder)
    shards = [int(lines[0].split()[4]) for lines in train]
    for shard, lines in zip(shards, train, strict=True):
        assert sorted(lines) == sorted(sentences(shard)) and lines != sentences(shard)
    # Prepared data sets and checkpoints depend on it.
    assert [int(lines[0].split()[1]) for lines in train] == [20, 18, 48, 23, 33, 6]
    assert shards == [0, 3, 4, 1, 5, 2]
    splits = texts_of(small_lm1b().splits(str(lm1b_folder)))
    assert splits["valid"] == splits["test"] == [b"Held out .\nIn order .\n"]
    (lm1b_folder / TRAINING[2]).unlink()
    with pytest.raises(InputMissingError, match=r"news\.en-00003-of-00100"):
        lm1b_lines(lm1b_folder)


def test_the_library_of_this_python_is_read():
    splits = {name: list(each) for name, each in python_standard_library_splits().items()}
    assert list(splits) == ["train", "valid", "test"]
    assert 5_000_000 < sum(map(len, splits["train"])) < 30_000_000
    headers = [document.split(b"\n", 1)[0] for each in splits.values() for document in each]
    assert b"# file: argparse.py" in headers
    assert not [header for header in headers if b"/test/" in header or b"-packages/" in header]


def test_the_path_decides_the_split_and_the_order(tmp_path):
    contents = {f"module_{index}.py": f"x = {index}" for index in range(200)}
    for name, content in {**contents, "empty.py": "", "data.txt": "no Python"}.items():
        (tmp_path / name).write_text(content)
    places = []
    splits = python_standard_library_splits(str(tmp_path))
    for (name, documents), top in zip(splits.items(), (0.9, 0.95, 1.0), strict=True):
        for document in documents:
            path = document.split(b"\n")[0].removeprefix(b"# file: ")
            places.append(int(hashlib.sha256(path).hexdigest()[:8], 16) / 2**32)
            assert places[-1] < top, name
    assert len(places) == 200 and places == sorted(places)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputMissingError, match="too few source files"):
        python_standard_library_splits(str(tmp_path / "folder"))
