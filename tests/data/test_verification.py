"""Data that are damaged or unfit for training are refused before the first step."""

import os
import shutil

import numpy as np
import pytest

from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import Manifest, PreparedDataset, verify_shard
from txl_tf.data.records import frame_bytes
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.data.vocabulary_training import WordTraining
from txl_tf.errors import DataDamagedError

RECORD = 32
NUM_WORDS = 300


def words(seed, num_words=NUM_WORDS):
    numbers = np.random.default_rng(seed).integers(0, 50, num_words)
    return b" ".join(b"w%d" % number for number in numbers)


@pytest.fixture
def folder(tmp_path):
    """Words of 2 bytes in 10 records: three shards of 4, 4 and 2."""
    return prepared(tmp_path / "data", words(1))


def prepared(path, text):
    training = WordTraining(rule=WordRule(), special_tokens=tuple(f"s{i}" for i in range(300)))
    sizes = {"tokens_per_record": RECORD, "shard_bytes": 4 * frame_bytes(RECORD, 2)}
    prepare_dataset({"train": [text]}, training, str(path), "test", **sizes)
    return path


def shard_path(folder, index=0):
    return folder / f"train-{index:05d}-of-00003.tfrecord"


def refusal(call, *arguments):
    """The place of the damage that a call refuses in three lines at most."""
    with pytest.raises(DataDamagedError) as error:
        call(*map(str, arguments[:1]), *arguments[1:])
    assert len(str(error.value).splitlines()) <= 3
    return error.value.where


def test_a_shard_cut_off_anywhere_is_refused(folder):
    path = shard_path(folder, 1)
    content = path.read_bytes()
    shard = Manifest.read(str(folder)).split("train").shards[1]
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        assert refusal(verify_shard, folder, shard) == str(path)
    assert refusal(PreparedDataset.open, folder) == str(path)


def test_flipped_bits_are_refused(folder):
    path = shard_path(folder, 2)
    content = path.read_bytes()
    shard = Manifest.read(str(folder)).split("train").shards[2]
    for place in range(0, 8 * len(content), 331):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert refusal(verify_shard, folder, shard) == str(path)
    assert refusal(PreparedDataset.open, folder) == str(path)


def missing(folder):
    os.remove(shard_path(folder, 1))
    return 1


def reordered(folder):
    first, second = shard_path(folder, 0), shard_path(folder, 1)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    return 0


def reordered_records(folder):
    path = shard_path(folder, 1)
    content, frame = path.read_bytes(), frame_bytes(RECORD, 2)
    path.write_bytes(content[frame : 2 * frame] + content[:frame] + content[2 * frame :])
    return 1


@pytest.mark.parametrize("damage", [missing, reordered, reordered_records])
def test_another_file_is_refused(folder, damage):
    index = damage(folder)
    assert refusal(PreparedDataset.open, folder) == str(shard_path(folder, index))


@pytest.mark.parametrize("name", ["train-00003-of-00003.tfrecord", "x.tfrecord", "x.tfrecord.gz"])
def test_an_extra_file_is_refused(folder, name):
    shutil.copy(shard_path(folder, 0), folder / name)
    assert refusal(PreparedDataset.open, folder) == str(folder / name)


def test_the_vocabulary_of_another_corpus_is_refused(folder):
    other = prepared(folder.parent / "other", b"other words " * 200)
    for name in ("vocabulary.txt", "vocabulary.json"):
        shutil.copy(other / name, folder / name)
    assert "vocabulary.txt" in refusal(PreparedDataset.open, folder)
    os.remove(folder / "vocabulary.txt")
    assert "vocabulary" in refusal(PreparedDataset.open, folder)


def test_whole_files_pass(folder):
    done = []
    dataset = PreparedDataset.open(str(folder))
    dataset.verify(progress=done.append)
    assert sum(done) == sum(shard.bytes for shard in dataset.manifest.split("train").shards)
