"""Files in a store, through TensorFlow's own client, when the store or the way to it fails."""

import time

import pytest
import tensorflow as tf

from tests.object_store.store_faults import KINDS
from tests.slow_case import slow_case
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import PreparedDataset
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.storage.files import (
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
from txl_tf.storage.untrusted_files import files_below

CONTENT = bytes(range(256)) * 3000


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("503", "broken_request", "lost_answer") else slow_case(kind)
        for kind in KINDS
    ],
)
def test_files_are_whole_whatever_fails_on_the_way(kind, object_store):
    folder = f"gs://files-{kind}/a/b"
    # Every second request meets a fault, so that each kind of request does.
    object_store.set_faults({"kinds": [kind], "probability": 0.5}, seed=1)
    make_folder(folder)
    write_file(f"{folder}/file", b"before")
    write_file(f"{folder}/file", CONTENT)
    assert read_file(f"{folder}/file") == CONTENT
    assert file_bytes(f"{folder}/file") == len(CONTENT)
    assert list_folder(folder) == ["file"]
    remove_file(f"{folder}/file")
    # Not by `path_exists`: for some seconds the client may know of what it has removed itself.
    assert object_store.names(bucket=f"files-{kind}") == ["a/", "a/b/"]
    remove_folder(folder)
    assert object_store.num_faults() > 5


def test_a_store_that_stays_away_is_an_error_of_reading_and_nothing_is_half_written(object_store):
    write_file("gs://away/file", b"before")
    object_store.set_faults({"kinds": ["503"]})
    for failing in (
        lambda: write_file("gs://away/file", CONTENT),
        lambda: read_file("gs://away/file"),
        lambda: file_sha256("gs://away/file"),
        lambda: list_folder("gs://away/other"),
    ):
        with pytest.raises(OSError) as raised:
            failing()
        assert not isinstance(raised.value, FileNotFoundError)
    object_store.reset()
    assert object_store.names(bucket="away") == ["file"]
    assert read_file("gs://away/file") == b"before"


def test_an_upload_that_breaks_goes_on_where_the_store_has_it(object_store):
    object_store.set_faults({"kinds": ["broken_request"], "method": "PUT", "count": 1})
    write_file("gs://upload/file", CONTENT)
    assert read_file("gs://upload/file") == CONTENT
    uploads = [entry for entry in object_store.requests() if entry["method"] == "PUT"]
    # The first sent half of it; the second asked; the third sent what was not kept of it.
    assert [entry["status"] for entry in uploads] == [0, 308, 200]
    assert uploads[0]["received"] == len(CONTENT) // 2
    assert uploads[2]["received"] < len(CONTENT)


def test_a_file_that_another_process_has_made_longer_is_read_to_its_end(object_store):
    write_file("gs://longer/file", b"short")
    assert file_bytes("gs://longer/file") == 5  # the client remembers that for some seconds
    object_store.put("file", CONTENT, bucket="longer")
    assert read_file("gs://longer/file") == CONTENT


def test_a_listing_may_lag_behind_and_reading_does_not(object_store):
    object_store.control(lag_seconds=600.0)
    write_file("gs://lag/file", b"new")
    assert list_folder("gs://lag") == []
    assert read_file("gs://lag/file") == b"new"
    object_store.control(lag_seconds=0.0)
    assert list_folder("gs://lag") == ["file"]


def test_files_below_folders_are_found_and_folders_are_told_from_files(object_store):
    object_store.put_many(["run/b/c/x", "run/b/y", "run/z"], bucket="below")
    assert files_below("gs://below/run") == ["b/c/x", "b/y", "z"]
    assert files_below("gs://below/none") == []
    places = ("run/b", "run/z", "none")
    assert [is_folder(f"gs://below/{place}") for place in places] == [True, False, False]
    object_store.set_faults({"kinds": ["503"]})
    with pytest.raises(OSError, match="503"):
        is_folder("gs://below/run/b/c")


def test_long_listings_come_in_pages(object_store):
    object_store.put_many([f"many/{number:04d}" for number in range(1003)], bucket="pages")
    assert len(list_folder("gs://pages/many")) == 1003
    listings = [entry for entry in object_store.requests() if "delimiter" in entry["path"]]
    assert len(listings) == 2


def test_requests_bytes_and_latency_are_what_they_are_said_to_be(object_store):
    object_store.put("file", CONTENT, bucket="counts")
    object_store.control(latency_seconds=0.1)
    begin = time.monotonic()
    with tf.io.gfile.GFile("gs://counts/file", "rb") as file:
        assert file.read() == CONTENT
    requests = object_store.requests()
    assert time.monotonic() - begin >= 0.1 * len(requests)
    downloads = [
        entry for entry in requests if entry["path"] == "storage.googleapis.com/counts/file"
    ]
    assert sum(entry["sent"] for entry in downloads) == len(CONTENT)


def test_a_data_set_is_published_whole_whatever_a_listing_says(object_store):
    object_store.control(lag_seconds=600.0)
    prepare_dataset(
        {"train": [CONTENT]}, ByteTokenizer(), "gs://published/data", "bytes", shard_bytes=300_000
    )
    object_store.control(lag_seconds=0.0)
    PreparedDataset.open("gs://published/data").verify(with_checksums=True)
