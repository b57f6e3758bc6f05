"""Preparation of texts: tokens and counts, locally and in a store, and refusals."""

import os

import pytest
import tensorflow as tf

from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.prepared_dataset import Manifest, PreparedDataset
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.errors import DataDamagedError, OutputExistsError

DOCUMENTS = [b"first document\n", "caf\u00e9 \u20ac\t".encode(), b"", b"\xff\xfe x" * 200]


def prepare(folder, splits=None, **arguments):
    splits = splits or {"train": DOCUMENTS, "valid": [b"short"]}
    arguments = {"tokens_per_record": 32, "shard_bytes": 200, **arguments}
    return prepare_dataset(splits, ByteTokenizer(), str(folder), "test", **arguments)


def test_a_data_set_has_the_tokens_and_counts_of_its_text(tmp_path):
    done = {}

    def progress(split, num_bytes):
        done[split] = done.get(split, 0) + num_bytes

    manifest = prepare(tmp_path / "out", progress=progress)
    text = b"".join(DOCUMENTS)
    train = manifest.split("train")
    assert train.tokens == train.bytes == len(text)
    # Of the 11 bytes of the second document, two continue the euro sign and one the e acute;
    # stray bytes count as characters.
    assert train.characters == len(text) - 3
    assert train.words == sum(len(document.split()) for document in DOCUMENTS)
    assert train.documents == 4
    assert len(train.shards) > 3
    assert done == {"train": len(text), "valid": 5}
    dataset = PreparedDataset.open(str(tmp_path / "out"))
    assert dataset.manifest == manifest
    assert ByteTokenizer().decode_bytes(dataset.read_tokens("train", 0, len(text))) == text
    assert ByteTokenizer().decode_bytes(dataset.read_tokens("valid", 0, 5)) == b"short"


def test_documents_can_be_str_and_lose_a_byte_order_mark(tmp_path):
    marked = ["\ufeffone", b"\xef\xbb\xbftwo", [b"\xef\xbb\xbfthr", b"ee"]]
    manifest = prepare(tmp_path / "marked", {"train": marked})
    assert manifest == prepare(tmp_path / "plain", {"train": ["one", b"two", [b"three"]]})
    assert manifest.split("train").bytes == len("onetwothree")
    assert manifest.split("train").documents == 3
    with pytest.raises(ValueError, match=r"lists of documents.*Received: 'train' is a str"):
        prepare(tmp_path / "not made", {"train": "one"})


@pytest.mark.parametrize("make", [os.mkdir, os.mknod])
def test_an_existing_output_is_left_alone(tmp_path, make):
    out = tmp_path / "out"
    make(out)
    before = os.lstat(out)
    with pytest.raises(OutputExistsError, match="exists"):
        prepare(out)
    assert os.lstat(out) == before
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("splits", [{"train": []}, {"train": [b""]}, {"train": [b"x"], "test": []}])
def test_an_empty_split_is_refused(tmp_path, splits):
    with pytest.raises(DataDamagedError, match="is empty"):
        prepare(tmp_path / "out", splits)
    assert os.listdir(tmp_path) == []


def test_an_object_store_holds_the_same_bytes(tmp_path):
    manifest = prepare(tmp_path / "local")
    tf.io.gfile.makedirs("ram://store")
    remote = "ram://store/out"
    assert prepare(remote) == manifest
    assert PreparedDataset.open(remote).fingerprint == manifest.fingerprint
    assert Manifest.read(remote) == manifest
    with pytest.raises(OutputExistsError):
        prepare(remote)
    # The first read of a file compares it with its checksum, if nothing did before.
    path = f"{remote}/{manifest.split('train').shards[0].file}"
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    tf.io.gfile.remove(path)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(content.replace(b"first", b"worst"))
    with pytest.raises(DataDamagedError, match="The file has SHA-256"):
        PreparedDataset.open(remote, verify=False).read_tokens("train", 0, 1)
