import dataclasses

import pytest

from tests.data.corpora.synthetic import like, resized
from txl_tf.data.corpora import PUBLISHED_CORPORA
from txl_tf.data.corpora.corpus import Corpus, ExpectedCounts
from txl_tf.data.corpora.enwik8_text8 import Text8
from txl_tf.data.corpora.wikitext_penn_treebank import PennTreebank
from txl_tf.data.manifest import SplitManifest
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.errors import DataDamagedError


def as_expected(corpus):
    """Splits that come to what is expected."""
    return [
        SplitManifest(
            name=counts.split,
            tokens=0,
            # No text has more words or characters than bytes, also where nobody counted these.
            bytes=counts.bytes or 2 * max(counts.characters or 0, counts.words or 0),
            characters=counts.characters or 0,
            words=counts.words or 0,
            documents=counts.documents or 0,
            shards=(),
        )
        for counts in corpus.expected_counts
    ]


class _Tokens:
    """A split as it is, but for the number of its tokens, which shards would have to hold."""

    def __init__(self, split, tokens):
        self._split = split
        self.tokens = tokens

    def __getattr__(self, name):
        return getattr(self._split, name)


@pytest.mark.parametrize("corpus_class", PUBLISHED_CORPORA)
def test_what_is_expected_is_accepted_and_every_surprise_refused(corpus_class):
    corpus = corpus_class()
    splits = as_expected(corpus)
    corpus.check_counts(splits)
    with pytest.raises(DataDamagedError, match="split is missing"):
        corpus.check_counts(splits[:-1])
    for index, counts in enumerate(corpus.expected_counts):
        for unit in ("bytes", "characters", "words", "documents"):
            wanted = getattr(counts, unit)
            if wanted is None:
                continue
            changed = dataclasses.replace(splits[index], **{unit: wanted + 1})
            message = f"There must be {wanted} {unit}, but there are {wanted + 1}"
            with pytest.raises(DataDamagedError, match=message) as caught:
                corpus.check_counts([*splits[:index], changed, *splits[index + 1 :]])
            assert f"corpus {corpus.name}, split {counts.split}" in str(caught.value)


@pytest.mark.parametrize("corpus_class", PUBLISHED_CORPORA)
def test_tokens_and_vocabulary_are_compared_for_the_official_tokenizer(corpus_class):
    corpus = corpus_class()
    splits = [
        _Tokens(split, counts.tokens)
        for split, counts in zip(as_expected(corpus), corpus.expected_counts, strict=True)
    ]
    for size in corpus.vocabulary_sizes:
        corpus.check_counts(splits, vocabulary_size=size)
    with pytest.raises(DataDamagedError, match="vocabulary must have"):
        corpus.check_counts(splits, vocabulary_size=max(corpus.vocabulary_sizes) + 1)
    splits[1].tokens = 5
    corpus.check_counts(splits)
    if corpus.expected_counts[1].tokens is not None:
        with pytest.raises(DataDamagedError, match="tokens, but there are 5"):
            corpus.check_counts(splits, vocabulary_size=corpus.vocabulary_sizes[0])


def test_what_was_prepared_is_compared(tmp_path):
    """The counts that preparation makes are those that are compared."""
    text = b" and so on" * 100 + b"the end is near  so it is"
    corpus = like(
        Text8,
        member=resized(Text8.member, text),
        split_bytes={"train": 1000, "valid": 15, "test": 10},
        expected_counts=tuple(
            ExpectedCounts(split=name, bytes=size, words=words, documents=1, tokens=size)
            for name, size, words in (("train", 999, 300), ("valid", 15, 4), ("test", 8, 3))
        ),
        vocabulary_sizes=(256,),
    )()
    (tmp_path / "text8").write_bytes(text)
    manifest = prepare_dataset(
        corpus.splits(str(tmp_path)), ByteTokenizer(), str(tmp_path / "data"), corpus.name
    )
    corpus.check_counts(manifest.splits, vocabulary_size=256)
    with pytest.raises(DataDamagedError, match="split test"):
        corpus.check_counts([*manifest.splits[:2], manifest.splits[0]])


def test_every_corpus_is_complete():
    names = [corpus_class.name for corpus_class in PUBLISHED_CORPORA]
    assert sorted(names) == [
        "enwik8",
        "lm1b",
        "penn_treebank",
        "text8",
        "wikitext103",
        "wikitext2",
    ]
    for corpus_class in PUBLISHED_CORPORA:
        corpus = corpus_class()
        assert issubclass(corpus_class, Corpus)
        assert [counts.split for counts in corpus.expected_counts] == ["train", "valid", "test"]
        assert corpus.archive.size_bytes
        checked_members = all(member.sha256 for member in corpus.members)
        assert corpus.archive.sha256 or checked_members
        with pytest.raises(dataclasses.FrozenInstanceError):
            corpus.name = "other"


def test_what_a_file_must_be_is_part_of_the_corpus():
    assert PennTreebank().expected_counts[0].bytes == 5_101_618
