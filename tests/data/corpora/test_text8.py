import pytest

from tests.data.corpora.synthetic import archive_of, like, resized, texts_of, write_zip
from txl_tf.data.corpora.text8 import Text8

SPLITS = {"train": 2_400_000, "valid": 100, "test": 7}
# Spaces at both ends of train, at the beginning of valid, and at no end of test.
TEXT = b" " + b"anarchism " * 239_999 + b"ends here" + b" valid" * 16 + b"also" + b"ends ok"


@pytest.fixture
def small(tmp_path):
    assert len(TEXT) == sum(SPLITS.values())
    path = write_zip(tmp_path / "text8.zip", {"text8": TEXT})
    corpus_class = like(Text8, member=resized(Text8.member, TEXT), split_bytes=SPLITS)
    return archive_of(corpus_class, path)(), str(path)


def test_spaces_at_the_ends_of_a_split_are_taken_off(small):
    corpus, path = small
    start = 0
    splits = texts_of(corpus.splits(path))
    assert list(splits) == ["train", "valid", "test"]
    for name, size in SPLITS.items():
        assert splits[name] == [TEXT[start : start + size].strip()]
        start += size
    assert len(splits["train"][0]) == SPLITS["train"] - 1
    assert len(splits["valid"][0]) == SPLITS["valid"] - 1
    assert len(splits["test"][0]) == SPLITS["test"]


def test_splits_can_be_read_twice(small):
    corpus, path = small
    splits = corpus.splits(path)
    assert texts_of(splits) == texts_of(splits)


def test_what_is_known_of_it():
    assert Text8().vocabulary_sizes == (27,)
    assert Text8().tokenizer_options.kind == "characters"
    assert sum(Text8.split_bytes.values()) == 100_000_000 == Text8.member.size_bytes
