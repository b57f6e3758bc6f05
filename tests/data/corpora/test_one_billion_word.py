"""One Billion Word corpus, with its sentences shuffled reproducibly."""

import numpy as np
import pytest

from tests.data.corpora.synthetic import archive_of, like, texts_of, write_folder, write_tar
from txl_tf.data.corpora.one_billion_word import OneBillionWord, shuffled_lines, shuffled_order
from txl_tf.errors import InputMissingError

TRAINING = OneBillionWord.training_files[:6]
HELD_OUT = OneBillionWord.held_out_file


def sentences(shard, count=50):
    return [b"Sentence %d of shard %d .\n" % (index, shard) for index in range(count)]


FILES = {member.path: b"".join(sentences(shard)) for shard, member in enumerate(TRAINING)} | {
    HELD_OUT.path: b"Held out .\nIn order .\n"
}


@pytest.fixture
def small_class():
    return like(OneBillionWord, training_files=TRAINING)


@pytest.fixture
def folder(tmp_path):
    return str(write_folder(tmp_path / "folder", FILES))


def lines_of(documents):
    return [document.splitlines(keepends=True) for document in documents]


def test_every_sentence_is_there_once_in_another_order(small_class, folder):
    train = lines_of(texts_of(small_class().splits(folder))["train"])
    shards = [int(lines[0].split()[4]) for lines in train]
    assert sorted(shards) == list(range(6)) != shards
    for shard, lines in zip(shards, train, strict=True):
        assert sorted(lines) == sorted(sentences(shard)) and lines != sentences(shard)


def test_the_order_is_decided_by_the_seed_alone(small_class, folder, tmp_path):
    path = write_tar(tmp_path / "r13output.tar.gz", dict(reversed(FILES.items())))
    from_archive = archive_of(small_class, path)(seed=3)
    first = texts_of(small_class(seed=3).splits(folder))
    assert texts_of(from_archive.splits(str(path))) == first
    assert texts_of(small_class(seed=4).splits(folder))["train"] != first["train"]
    splits = small_class(seed=3).splits(folder)
    assert texts_of(splits) == texts_of(splits) == first


def test_the_order_stays_what_it_was(small_class, folder):
    """Prepared data sets and checkpoints depend on it."""
    train = texts_of(small_class().splits(folder))["train"]
    assert [document.split(b"\n")[0].decode() for document in train] == [
        "Sentence 30 of shard 2 .",
        "Sentence 21 of shard 3 .",
        "Sentence 27 of shard 0 .",
        "Sentence 31 of shard 5 .",
        "Sentence 21 of shard 1 .",
        "Sentence 8 of shard 4 .",
    ]


def test_every_pass_has_an_order_of_its_own(small_class, folder):
    corpus = small_class(num_passes=3)
    train = lines_of(texts_of(corpus.splits(folder))["train"])
    assert len(train) == 18
    passes = [train[start : start + 6] for start in (0, 6, 12)]
    assert train[:6] == lines_of(texts_of(small_class().splits(folder))["train"])
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert passes[one] != passes[other]
        assert sorted(map(sorted, passes[one])) == sorted(map(sorted, passes[other]))
    assert corpus.expected_counts[0].tokens == 3 * OneBillionWord().expected_counts[0].tokens


def test_valid_and_test_are_the_same_file_in_order(small_class, folder):
    splits = texts_of(small_class().splits(folder))
    assert splits["valid"] == splits["test"] == [FILES[HELD_OUT.path]]


def test_a_missing_training_file_is_named(small_class, folder, tmp_path):
    (tmp_path / "folder" / TRAINING[2].path).unlink()
    with pytest.raises(InputMissingError, match=r"news\.en-00003-of-00100"):
        small_class().splits(folder)


def test_what_is_known_of_it():
    corpus = OneBillionWord()
    assert len(corpus.training_files) == 99
    assert corpus.training_files[0].path.endswith("shuffled/news.en-00001-of-00100")
    train, valid, test = corpus.expected_counts
    # The makers count one mark for the beginning and one for the end of a sentence.
    assert train.tokens == train.words + 2 * 30_301_028
    assert valid.words + (valid.tokens - valid.words) // 2 == 159_658
    assert (valid.words, valid.tokens) == (test.words, test.tokens)
    options = corpus.tokenizer_options
    assert options.add_double_eos and not options.add_eos and options.eos_token == "<S>"
    with pytest.raises(ValueError, match="Received: 0"):
        OneBillionWord(num_passes=0)


def test_an_order_has_every_number_once():
    for count in (0, 1, 2, 1000):
        assert sorted(shuffled_order(count, 0)) == list(range(count))


def test_sentence_shuffle_the_order_stays_what_it_was():
    """Prepared data sets depend on it."""
    assert shuffled_order(8, 0, 1, 2).tolist() == [7, 0, 3, 1, 5, 6, 4, 2]


def test_every_key_matters():
    orders = {tuple(shuffled_order(50, *keys)) for keys in ((0,), (1,), (0, 0), (0, 1), ("0", 12))}
    assert len(orders) == 5


def test_places_are_taken_evenly():
    counts = np.zeros((6, 6))
    for seed in range(6000):
        for place, number in enumerate(shuffled_order(6, seed)):
            counts[place, number] += 1
    # 6000 / 6, and five standard deviations of it.
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(6000 * 5 / 36)


def test_lines_keep_their_bytes():
    text = "one\rmore\ntwo \u2028 \x0b\n\nlast without line feed".encode()
    lines = shuffled_lines([text[:5], text[5:]], 1)
    assert sorted(lines) == sorted(line + b"\n" for line in text.split(b"\n"))
    assert shuffled_lines([b""], 1) == []
