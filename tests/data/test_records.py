"""Records of tokens: their bytes, where documents begin, and damage."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.data.preparation import write_split
from txl_tf.data.records import frame_bytes, parse_frame
from txl_tf.data.text import TextCounts
from txl_tf.errors import DataDamagedError


def write(folder, pieces, tokens_per_record=4096, shard_bytes=10**6):
    """Writes pieces: token ids, or token ids and the places where documents begin."""
    pieces = [piece if isinstance(piece, tuple) else (piece, []) for piece in pieces]
    batches = ((ids, np.array(starts, np.int64), TextCounts()) for ids, starts in pieces)
    return write_split("train", batches, str(folder), tokens_per_record, shard_bytes).shards


def tokens_of(path, dtype=np.uint8):
    """Reads with TensorFlow's own reader, which also checks the CRCs."""
    return [
        np.frombuffer(
            tf.train.Example.FromString(record.numpy())
            .features.feature["tokens"]
            .bytes_list.value[0],
            dtype,
        )
        for record in tf.data.TFRecordDataset(str(path))
    ]


@pytest.mark.parametrize("piece_tokens", [1, 7, 50, 64, 1000])
def test_records_do_not_depend_on_how_tokens_arrive(tmp_path, piece_tokens):
    tokens = np.random.default_rng(1).integers(0, 256, 1000).astype(np.uint8)
    pieces = [tokens[i : i + piece_tokens] for i in range(0, 1000, piece_tokens)]
    shards = write(tmp_path, pieces, tokens_per_record=64, shard_bytes=6 * frame_bytes(64, 1))
    assert [shard.tokens for shard in shards] == [384, 384, 232]
    assert [shard.records for shard in shards] == [6, 6, 4]
    records = [record for shard in shards for record in tokens_of(tmp_path / shard.file)]
    assert [len(record) for record in records] == [64] * 15 + [40]
    np.testing.assert_array_equal(np.concatenate(records), tokens)
    names = [f"train-{index:05d}-of-00003.tfrecord" for index in range(3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for shard in shards:
        content = (tmp_path / shard.file).read_bytes()
        assert (shard.bytes, shard.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_damaged_record_is_refused_with_its_place(tmp_path):
    (shard,) = write(tmp_path, [np.zeros(200, np.uint8)], tokens_per_record=100)
    content, size = (tmp_path / shard.file).read_bytes(), frame_bytes(100, 1)
    for wrong in (content[1 : size + 1], content[: size - 1], content[:8] + b"\xff" * (size - 8)):
        with pytest.raises(DataDamagedError, match="here"):
            parse_frame(wrong, 100, 1, where="here")


def test_an_empty_document_begins_with_the_next_token(tmp_path):
    nothing = np.zeros(0, np.uint8)
    pieces = [(nothing, [0]), (nothing, []), (nothing, [0]), (np.zeros(3, np.uint8), [2])]
    # After the last token, no token begins it.
    (shard,) = write(tmp_path, [*pieces, (nothing, [0])])
    starts = parse_frame((tmp_path / shard.file).read_bytes(), 3, 1, where="")[1]
    assert starts.tolist() == [True, False, True]
