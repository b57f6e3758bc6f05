"""What is read of a data set in a store before the first step."""

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.data.segment_reader import SegmentReader
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.storage.files import file_blocks, file_sha256

NUM_STEPS, SEGMENT_LENGTH, TOKEN_BYTES = 100, 32, 4


class WideByteTokenizer(ByteTokenizer):
    """Bytes as ids of a large vocabulary."""

    kind = "wide"
    vocabulary_size = 793_471
    token_dtype = np.dtype("<i4")

    def encode_piece(self, text, begins_line, ends_document):
        return np.frombuffer(text, np.uint8).astype(self.token_dtype)


@pytest.fixture(scope="module")
def wide_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide") / "data"
    text = np.random.default_rng(0).bytes(1_300_000)
    prepare_dataset(
        {"train": [[text, text]]}, WideByteTokenizer(), str(folder), "wide", shard_bytes=1_000_000
    )
    return folder


def test_a_host_reads_what_its_first_steps_need_and_rows_do_not_wait(wide_data, object_store):
    object_store.put_folder(wide_data, "data", bucket="first")
    object_store.control(latency_seconds=0.1)
    num_rows = 32
    dataset = PreparedDataset.open("gs://first/data", verify=False)
    plan = SegmentPlan(
        num_tokens=dataset.num_tokens("train"),
        num_rows=512,
        segment_length=SEGMENT_LENGTH,
        fingerprint=dataset.fingerprint,
        rotate=True,
    )
    reader = SegmentReader(dataset, "train", plan)
    batches = iter(reader.dataset_fn(0, range(num_rows), num_rows, 10 * NUM_STEPS))
    for _ in range(NUM_STEPS):
        assert next(batches)["token_ids"].shape == (num_rows, SEGMENT_LENGTH)
    shards = [each for each in object_store.requests() if each["path"].endswith(".tfrecord")]
    needed_bytes = num_rows * (NUM_STEPS * SEGMENT_LENGTH + 1) * TOKEN_BYTES
    assert sum(each["sent"] for each in shards) <= 4.0 * needed_bytes
    # A request for each row, and one where a row crosses into another file.
    assert len(shards) <= num_rows + 2
    assert max(each["in_flight"] for each in shards) >= num_rows // 4


@pytest.mark.parametrize("rotate", [slow_case(False), True])
def test_rows_from_a_store_are_those_from_the_disk(wide_data, object_store, rotate):
    object_store.put_folder(wide_data, "data", bucket="rows")
    batches = []
    for folder in (str(wide_data), "gs://rows/data"):
        dataset = PreparedDataset.open(folder, verify=False)
        plan = SegmentPlan(
            num_tokens=dataset.num_tokens("train"),
            num_rows=6,
            segment_length=3000,
            fingerprint=dataset.fingerprint,
            rotate=rotate,
        )
        first = plan.segments_per_epoch - 3
        reader = SegmentReader(dataset, "train", plan)
        batches.append(list(reader.dataset_fn(first, range(1, 5), 2, 6).as_numpy_iterator()))
    assert len(batches[0]) == len(batches[1]) == 12
    for here, there in zip(*batches, strict=True):
        for name, values in here.items():
            np.testing.assert_array_equal(there[name], values)


def test_whole_files_are_read_in_few_requests(object_store):
    content = np.random.default_rng(1).bytes(20_000_001)
    object_store.put("file", content, bucket="whole")
    blocks = list(file_blocks("gs://whole/file", 3_000_000))
    assert [len(block) for block in blocks] == [3_000_000] * 6 + [2_000_001]
    assert b"".join(blocks) == content
    downloads = [
        entry["sent"] for entry in object_store.requests() if "whole/file" in entry["path"]
    ]
    assert len(downloads) < 12
    assert sum(downloads) < 1.01 * len(content)
    object_store.put("empty", b"", bucket="whole")
    assert list(file_blocks("gs://whole/empty")) == []
    with pytest.raises(FileNotFoundError):
        file_sha256("gs://whole/none")


@pytest.mark.slow
def test_a_store_that_stays_away_while_rows_are_read_is_an_error_of_tensorflow(
    wide_data, object_store
):
    object_store.put_folder(wide_data, "data", bucket="gone")
    dataset = PreparedDataset.open("gs://gone/data", verify=False)
    plan = SegmentPlan(
        num_tokens=dataset.num_tokens("train"),
        num_rows=1,
        segment_length=32,
        fingerprint=dataset.fingerprint,
    )
    object_store.set_faults({"kinds": ["503"], "path": "tfrecord"})
    with pytest.raises(tf.errors.OpError, match="503"):
        next(iter(SegmentReader(dataset, "train", plan).dataset_fn(0, range(1), 1, 1)))
