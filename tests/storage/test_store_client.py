"""Files, rows and checkpoints in a store, through TensorFlow's own client, when the store fails."""

import numpy as np
import pytest
import tensorflow as tf

from tests.training.saved_states import IDENTITY, arrays_of, assert_is_state_of
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.segment_plan import SegmentPlan
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.training_segments import TrainingSegments
from txl_tf.errors import StorageError
from txl_tf.storage.files import (
    file_blocks,
    file_bytes,
    file_sha256,
    is_folder,
    list_folder,
    make_folder,
    read_file,
    remove_file,
    remove_folder,
    write_file,
)
from txl_tf.storage.listed_files import files_below
from txl_tf.training.checkpoints.checkpoint_store import CheckpointStore

CONTENT = bytes(range(256)) * 3000


def test_files_are_whole_although_requests_fail(object_store):
    folder = "gs://files/a/b"
    for action in (
        lambda: make_folder(folder),
        lambda: write_file(f"{folder}/file", b"short"),
        lambda: file_bytes(f"{folder}/file"),  # the client remembers that for some seconds
        lambda: object_store.put("files", **{"a/b/file": CONTENT}),
        lambda: read_file(f"{folder}/file"),
    ):
        object_store.fail(count=5)
        content = action()
    assert content == CONTENT
    object_store.put("files", **{"a/b/c/d": b""})
    assert list_folder(folder) == ["c", "file"]
    assert files_below("gs://files/a") == ["b/c/d", "b/file"]
    assert is_folder("gs://files/a/b/c")
    assert not is_folder(f"{folder}/file")
    assert not is_folder("gs://files/none")
    remove_file(f"{folder}/file")
    remove_folder("gs://files/a")
    assert object_store.names("files") == []


def test_a_store_that_stays_away_is_an_error_of_reading_and_nothing_is_half_written(object_store):
    write_file("gs://away/file", b"before")
    object_store.fail()
    for failing in (
        lambda: write_file("gs://away/file", CONTENT),
        lambda: read_file("gs://away/file"),
        lambda: file_sha256("gs://away/file"),
        lambda: list_folder("gs://away/other"),
        lambda: is_folder("gs://away/folder"),
    ):
        with pytest.raises(OSError) as error:
            failing()
        assert not isinstance(error.value, FileNotFoundError)
    object_store.reset()
    assert object_store.names("away") == ["file"]
    assert read_file("gs://away/file") == b"before"
    with pytest.raises(FileNotFoundError):
        file_sha256("gs://away/none")


def test_whole_files_are_read_in_few_requests(object_store):
    content = np.random.default_rng(1).bytes(20_000_001)
    object_store.put("whole", file=content, empty=b"")
    assert b"".join(file_blocks("gs://whole/file")) == content
    downloads = [each["sent"] for each in object_store.requests() if "whole/file" in each["path"]]
    assert len(downloads) < 12
    assert sum(downloads) < 1.01 * len(content)
    assert list(file_blocks("gs://whole/empty")) == []


class WideByteTokenizer(ByteTokenizer):
    """Bytes as ids of a large vocabulary."""

    kind = "wide"
    vocabulary_size = 793_471
    token_dtype = np.dtype("<i4")

    def encode_piece(self, text, begins_line, ends_document):
        return np.frombuffer(text, np.uint8).astype(self.token_dtype)


def test_a_host_reads_only_its_first_steps_and_rows_do_not_wait(tmp_path, object_store):
    num_steps, segment_length, num_rows = 100, 32, 32
    text = np.random.default_rng(0).bytes(1_300_000)
    prepare_dataset(
        {"train": [[text, text]]},
        WideByteTokenizer(),
        str(tmp_path / "wide"),
        "wide",
        shard_bytes=1_000_000,
    )
    object_store.put_folder(tmp_path / "wide", "rows")
    object_store.order(latency_seconds=0.1, log=[])

    def batches(folder):
        dataset = PreparedDataset.open(folder, verify=False)
        plan = SegmentPlan(
            num_tokens=dataset.num_tokens("train"),
            num_rows=512,
            segment_length=segment_length,
            fingerprint=dataset.fingerprint,
            rotate=True,
        )
        reader = TrainingSegments(dataset, "train", plan)
        return iter(reader.dataset_fn(0, range(num_rows), num_rows, 10 * num_steps))

    state, local = batches("gs://rows/data"), batches(str(tmp_path / "wide"))
    for _ in range(num_steps):
        there, here = next(state), next(local)
        for name, values in here.items():
            np.testing.assert_array_equal(there[name], values)
    shards = [each for each in object_store.requests() if each["path"].endswith(".tfrecord")]
    needed_bytes = (
        num_rows * (num_steps * segment_length + 1) * WideByteTokenizer.token_dtype.itemsize
    )
    assert sum(each["sent"] for each in shards) <= 4.0 * needed_bytes
    # A request for each row, and one where a row crosses into another file.
    assert len(shards) <= num_rows + 2
    assert max(each["in_flight"] for each in shards) >= num_rows // 4
    object_store.reset()
    object_store.fail(path="tfrecord")
    with pytest.raises(tf.errors.OpError, match="503"):
        next(batches("gs://rows/data"))


@pytest.mark.slow
def test_a_store_that_stays_away_at_whatever_request_is_no_damage_of_a_checkpoint(object_store):
    folder = "gs://checkpoints/run/checkpoints"
    CheckpointStore(folder, IDENTITY).save(5, arrays_of(5))
    object_store.reset()
    assert_is_state_of(5, CheckpointStore(folder, IDENTITY).load(5))
    # The client asks ten times more, so each outage begins with one request and ends one reading.
    for skipped in range(0, len(object_store.requests()), 2):
        object_store.fail(skip=skipped, count=11)
        try:
            step, arrays, complaints = CheckpointStore(folder, IDENTITY).load_latest()
        except (StorageError, OSError):
            continue
        assert (step, complaints) == (5, [])
        assert_is_state_of(5, arrays)
    object_store.fail(method="PUT|POST", skip=3)
    with pytest.raises(StorageError):
        CheckpointStore(folder, IDENTITY).save(10, arrays_of(10))
    object_store.reset()
    assert CheckpointStore(folder, IDENTITY).load_latest()[0] == 5
