import contextlib
import hashlib
import json
import os
import tracemalloc

import numpy as np
import pytest

from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.records import frame_bytes
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.errors import DataDamagedError


def with_checksum(values):
    rest = {name: value for name, value in values.items() if name != "manifest_sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return rest | {"manifest_sha256": hashlib.sha256(text.encode()).hexdigest()}


@pytest.mark.parametrize("num_tokens", [1, 63, 64, 320, 321, 1500])
def test_any_range_of_tokens_can_be_read(make_dataset, num_tokens):
    dataset, tokens = make_dataset(num_tokens)
    assert dataset.num_tokens("train") == num_tokens
    random = np.random.default_rng(num_tokens)
    ends = [np.sort(random.integers(0, num_tokens + 1, 2)) for _ in range(50)]
    for start, stop in [(0, num_tokens), (num_tokens, num_tokens), *ends]:
        found = dataset.read_tokens("train", start, stop)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, tokens[start:stop])


def test_a_token_lies_where_it_is_said_to(make_dataset):
    dataset, tokens = make_dataset(1500)
    for token in (0, 63, 64, 319, 320, 1499):
        file, record, byte_offset = dataset.record_location("train", token)
        assert file == f"train-{token // 320:05d}-of-00005.tfrecord"
        assert record == token % 320 // 64
        with open(os.path.join(dataset.folder, file), "rb") as shard:
            shard.seek(byte_offset)
            assert tokens[token // 64 * 64 :][:64].astype(np.uint8).tobytes() in shard.read(
                frame_bytes(64, 1)
            )


@pytest.mark.parametrize(
    "call",
    [
        lambda dataset: dataset.num_tokens("trian"),
        lambda dataset: dataset.shard_starts("trian"),
        lambda dataset: dataset.read_tokens("trian", 0, 1),
        lambda dataset: dataset.read_tokens("train", -1, 1),
        lambda dataset: dataset.read_tokens("train", 2, 1),
        lambda dataset: dataset.read_tokens("train", 0, 101),
        lambda dataset: dataset.record_location("train", 100),
    ],
)
def test_what_is_not_there_cannot_be_asked_for(make_dataset, call):
    dataset, _ = make_dataset(100)
    with pytest.raises(ValueError, match="Received: "):
        call(dataset)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens_per_record": 1 << 30},
        {"tokens_per_record": (1 << 30) + 1},
        {"tokens_per_record": 1 << 62},
        {"token_bytes": 4},
        {"vocabulary_size": 1 << 40},
    ],
)
def test_no_number_of_a_manifest_takes_memory(changes, tmp_path):
    folder = str(tmp_path / "data")
    prepare_dataset({"train": [bytes(range(256)) * 100]}, ByteTokenizer(), folder, "test")
    path = tmp_path / "data" / "manifest.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(with_checksum(values | changes)))
    tracemalloc.start()
    with contextlib.suppress(DataDamagedError):  # records may be larger than the shards
        dataset = PreparedDataset.open(folder)
        assert changes == {"tokens_per_record": 1 << 30}
        assert dataset.read_tokens("train", 5, 8).tolist() == [5, 6, 7]
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["bytes", "characters", "words", "documents"])
@pytest.mark.parametrize("value", [0, -1, 1 << 62])
def test_counts_that_cannot_be_are_refused_when_a_data_set_is_opened(name, value, tmp_path):
    folder = str(tmp_path / "data")
    prepare_dataset({"train": [b"some text " * 100]}, ByteTokenizer(), folder, "test")
    path = tmp_path / "data" / "manifest.json"
    values = json.loads(path.read_text())
    values["splits"][0][name] = value
    path.write_text(json.dumps(with_checksum(values)))
    if (value == 0 and name != "bytes") or (name == "documents" and value > 0):
        PreparedDataset.open(folder, verify=False)  # what figures leave out, or nobody divides by
        return
    with pytest.raises(DataDamagedError, match=f"`{name}` of `train`"):
        PreparedDataset.open(folder, verify=False)
