import collections

import pytest

from pipelines.benchmarking.data_work import prepare, random_words, read, write_random_dataset
from txl_tf.data.prepared_dataset import PreparedDataset


@pytest.mark.parametrize("vocabulary_size", [13, 256, 70_000])
def test_random_data_has_tokens_of_the_whole_vocabulary(tmp_path, vocabulary_size):
    path = write_random_dataset(str(tmp_path), 5000, vocabulary_size)
    dataset = PreparedDataset.open(path)
    assert dataset.manifest.vocabulary_size == vocabulary_size
    assert dataset.num_tokens("train") == 5000
    tokens = dataset.read_tokens("train", 0, 5000)
    assert tokens.min() >= 0 and vocabulary_size * 0.9 < tokens.max() + 1 <= vocabulary_size


def test_random_words_are_a_text_as_long_as_asked_for():
    text = random_words(20_000)
    assert 20_000 <= len(text) < 20_200
    counts = collections.Counter(text.split())
    assert len(counts) > 200
    assert counts.most_common(1)[0][1] > 0.05 * counts.total()


def test_a_text_is_prepared_each_time(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"one two three\n" * 50)
    request = {"text": str(tmp_path / "text.txt"), "folder": str(tmp_path)}
    turn = prepare({**request, "tokenizer": "bytes"})
    assert turn(1) == {"tokens": 700}
    assert turn(2) == {"tokens": 1400}


@pytest.mark.parametrize("with_starts", [False, True])
def test_batches_are_read_one_after_the_other(tmp_path, with_starts):
    request = {"data": None, "folder": str(tmp_path), "num_rows": 2, "segment_length": 4}
    turn = read({**request, "with_document_starts": with_starts})
    assert turn(3) == {"tokens": 24}
    # Beyond the end of the data, which has fewer batches.
    assert turn(300) == {"tokens": 2400}
