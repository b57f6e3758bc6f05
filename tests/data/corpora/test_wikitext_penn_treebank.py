"""Corpora WikiText-2, WikiText-103 and Penn Treebank."""

import dataclasses

import pytest

from tests.data.corpora.synthetic import (
    archive_of,
    like,
    resized,
    texts_of,
    write_folder,
    write_tar,
    write_zip,
)
from txl_tf.data.corpora.wikitext_penn_treebank import (
    PennTreebank,
    WikiText2,
    WikiText103,
    wikitext_articles,
)
from txl_tf.errors import DataDamagedError, InputMissingError

ARTICLE = b" \n = Title %d = \n \n Some = text = of it . \n \n = = Part = = \n \n More . \n"


def articles(*numbers):
    return b"".join(ARTICLE % number for number in numbers)


FILES = {
    "wikitext-2/wiki.train.tokens": articles(*range(60)),
    "wikitext-2/wiki.valid.tokens": articles(1, 2),
    "wikitext-2/wiki.test.tokens": articles(3),
}


def unsized(corpus_class):
    """The class without the sizes of the published files."""
    files = {
        name: dataclasses.replace(member, size_bytes=None, sha256=None)
        for name, member in corpus_class.split_files.items()
    }
    return like(corpus_class, split_files=files)


def test_articles_are_documents(tmp_path):
    path = write_zip(tmp_path / "wikitext-2-v1.zip", FILES)
    corpus = archive_of(unsized(WikiText2), path)()
    splits = texts_of(corpus.splits(str(path)))
    assert splits == {
        "train": [ARTICLE % number for number in range(60)],
        "valid": [ARTICLE % 1, ARTICLE % 2],
        "test": [ARTICLE % 3],
    }


def test_folders_as_unpacked_and_as_renamed_are_read_alike(tmp_path):
    corpus = unsized(WikiText2)()
    whole = write_folder(tmp_path / "whole", FILES)
    renamed = {f"{name.split('.')[1]}.txt": content for name, content in FILES.items()}
    expected = texts_of(corpus.splits(str(whole)))
    assert texts_of(corpus.splits(str(whole / "wikitext-2"))) == expected
    assert texts_of(corpus.splits(str(write_folder(tmp_path / "new", renamed)))) == expected


def test_only_titles_between_blank_lines_begin_articles():
    text = (
        b"no blank line before\n = No title = \n \n"
        b" \n = Title = \n text\n \n = = Heading = = \n \n = Not one\n \n Nor = this = \n \n"
        b" = Title = \n \n last line\n"
    )
    found = [b"".join(article) for article in wikitext_articles([text])]
    assert b"".join(found) == text
    assert found[1:] == [b" \n = Title = \n \n last line\n"]


def test_articles_do_not_depend_on_the_pieces():
    text = articles(*range(40))
    lines = text.splitlines(keepends=True)
    expected = [ARTICLE % number for number in range(40)]
    for size in (1, 2, 3, 5, 1000):
        pieces = [b"".join(lines[start : start + size]) for start in range(0, len(lines), size)]
        assert [b"".join(article) for article in wikitext_articles(pieces)] == expected


def test_texts_without_articles_are_one_document():
    for text in (b"", b"one\n", b"one\ntwo\n", b" \n = Title = \n", b"a\rb\n\x0b\nc\n"):
        found = [b"".join(article) for article in wikitext_articles([text])]
        assert found == ([text] if text else [])


def test_long_articles_come_in_pieces():
    text = b" \n = Title = \n \n" + b" word" * 100_000 + b"\n" + b" line\n" * 100_000
    (pieces,) = (list(article) for article in wikitext_articles([text]))
    assert b"".join(pieces) == text
    assert len(pieces) > 5


def test_tokens_are_words_and_lines():
    """The number of lines is known from another source than the numbers of tokens and words."""
    lines = {
        WikiText103: {"train": 1_801_350, "valid": 3_760, "test": 4_358},
        WikiText2: {"train": 36_718, "valid": 3_760, "test": 4_358},
    }
    for corpus_class, expected in lines.items():
        for counts in corpus_class().expected_counts:
            assert counts.tokens - counts.words == expected[counts.split]


def test_the_vocabularies_are_of_what_the_official_code_counts():
    options = WikiText103().tokenizer_options
    assert options.counted_splits == ("train",)
    assert WikiText2().tokenizer_options.counted_splits == ("train", "valid", "test")
    assert options.special_tokens == ("<eos>",) and options.add_eos and not options.lower_case
    assert WikiText103().vocabulary_sizes == (267_735,)
    assert WikiText2().vocabulary_sizes == (33_278,)


TEXTS = {
    "train": b" no it was n't <unk> monday \n and <unk> the N \n" * 100,
    "valid": b" consumers may want to \n",
    "test": b" no \n",
}
PENN_FILES = {f"simple-examples/data/ptb.{name}.txt": text for name, text in TEXTS.items()}
MEMBERS = {name: resized(member, TEXTS[name]) for name, member in PennTreebank.split_files.items()}


@pytest.fixture
def small_class():
    return like(PennTreebank, split_files=MEMBERS)


def test_the_archive_is_unpacked_beside_itself(tmp_path, small_class):
    path = write_tar(
        tmp_path / "simple-examples.tgz", PENN_FILES | {"simple-examples/readme": b"x"}
    )
    corpus = archive_of(small_class, path)()
    splits = texts_of(corpus.splits(str(path)))
    assert splits == {name: [text] for name, text in TEXTS.items()}
    assert (tmp_path / "simple-examples.tgz.unpacked").is_dir()
    elsewhere = tmp_path / "elsewhere"
    assert texts_of(corpus.splits(str(path), unpack_folder=str(elsewhere))) == splits
    assert elsewhere.is_dir()


@pytest.mark.parametrize("prefix", ["simple-examples/data/ptb.", "data/ptb.", "ptb.", ""])
def test_folders_are_read_as_far_as_they_were_unpacked(tmp_path, small_class, prefix):
    files = {f"{prefix}{name}.txt": text for name, text in TEXTS.items()}
    splits = small_class().splits(str(write_folder(tmp_path, files)))
    assert texts_of(splits) == {name: [text] for name, text in TEXTS.items()}


def test_another_text_and_a_missing_file_are_named(tmp_path, small_class):
    files = {f"{name}.txt": text for name, text in TEXTS.items()}
    write_folder(tmp_path, files | {"test.txt": b" na \n"})
    with pytest.raises(DataDamagedError, match=r"ptb\.test\.txt must have SHA-256"):
        small_class().splits(str(tmp_path))
    (tmp_path / "test.txt").unlink()
    with pytest.raises(InputMissingError, match=r"ptb\.test\.txt") as caught:
        small_class().splits(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_single_file_is_not_the_corpus(tmp_path, small_class):
    path = tmp_path / "ptb.train.txt"
    path.write_bytes(TEXTS["train"])
    with pytest.raises(DataDamagedError, match=r"neither simple-examples\.tgz nor a folder"):
        small_class().splits(str(path))


def test_tokens_of_penn_treebank_are_words_and_lines():
    lines = {"train": 42_068, "valid": 3_370, "test": 3_761}
    for counts in PennTreebank().expected_counts:
        assert counts.tokens - counts.words == lines[counts.split]
    assert PennTreebank().vocabulary_sizes == (10_000,)
    assert PennTreebank().tokenizer_options.lower_case
