"""A Beam pipeline writes the files that one process writes."""

import sys

import pytest

from tests.data.test_parallel_preparation import KINDS, contents, documents
from txl_tf.data import text as text_module
from txl_tf.data.beam import (
    ShardPlan,
    count_tokens,
    place_tokens,
    write_shard,
)
from txl_tf.data.preparation import prepare_dataset
from txl_tf.data.records import RecordSizes
from txl_tf.data.text import work_batches
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.tokenizer import BatchEncoder
from txl_tf.errors import DataDamagedError, UsageError

SIZES = {"tokens_per_record": 64, "shard_bytes": 300}


def test_the_passes_write_what_one_process_writes(tmp_path, monkeypatch):
    """The work of a pipeline, its parts in another order, without the pipeline."""
    monkeypatch.setattr(text_module, "BATCH_BYTES", 100)
    texts = documents(5)
    texts.append([b""])
    manifest = prepare_dataset(
        {"train": texts}, ByteTokenizer(), str(tmp_path / "one"), "test", **SIZES
    )
    batches = [("train", i, pieces) for i, pieces in enumerate(work_batches("train", texts))]
    encode = BatchEncoder(ByteTokenizer())
    counted = [count_tokens(encode, batch) for batch in batches]
    plan = ShardPlan(tuple(each["tokens"] for each in counted), RecordSizes(1, 64, 300))
    assert plan.num_shards == len(manifest.split("train").shards) > 5
    shards = {}
    for batch in reversed(batches):
        for key, part in place_tokens(encode, {"train": plan}, batch):
            shards.setdefault(key, []).append(part)
    out = tmp_path / "out"
    out.mkdir()
    for item in shards.items():
        write_shard(str(out), {"train": plan}, 256, item)
    found = contents(out)
    assert found == {
        name: each for name, each in contents(tmp_path / "one").items() if name in found
    }
    assert len(found) == plan.num_shards


def test_a_text_that_changes_between_the_passes_is_refused():
    (batch,) = work_batches("train", [b"text"])
    plan = ShardPlan((5,), RecordSizes(1, 64, 300))
    with pytest.raises(ValueError, match="4 tokens in batch 0 of `train`, 5 before"):
        encode = BatchEncoder(ByteTokenizer())
        list(place_tokens(encode, {"train": plan}, ("train", 0, batch)))


def test_without_beam_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UsageError, match=r"pip install -e '\.\[beam\]'"):
        splits = {"train": [b"text"]}
        prepare_dataset(splits, ByteTokenizer(), str(tmp_path / "out"), "test", beam_arguments=[])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["words", "sentencepiece"])
def test_a_pipeline_writes_what_one_process_writes(tmp_path, monkeypatch, kind):
    pytest.importorskip("apache_beam")
    monkeypatch.setattr(text_module, "BATCH_BYTES", 500)
    splits = {"train": documents(3, 100), "valid": documents(2, 10)}
    splits["valid"].append([b""])
    prepare_dataset(splits, KINDS[kind], str(tmp_path / "one"), "test", **SIZES)
    beam = {**SIZES, "beam_arguments": []}
    prepare_dataset(splits, KINDS[kind], str(tmp_path / "beam"), "test", **beam)
    assert contents(tmp_path / "beam") == contents(tmp_path / "one")
    with pytest.raises(DataDamagedError, match="empty"):
        prepare_dataset({"train": [b""]}, ByteTokenizer(), str(tmp_path / "no"), "test", **beam)
