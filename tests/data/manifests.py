"""Manifests of data sets that are nowhere."""

from txl_tf.data.prepared_dataset import FORMAT_VERSION, Manifest, ShardManifest, SplitManifest


def shard(index=0, count=2, **changes):
    values = {
        "file": f"train-{index:05d}-of-{count:05d}.tfrecord",
        "tokens": 20,
        "records": 2,
        "bytes": 100,
        "sha256": "ab" * 32,
    }
    return ShardManifest(**{**values, **changes})


def split(**changes):
    values = {
        "name": "train",
        "tokens": 40,
        "bytes": 40,
        "characters": 39,
        "words": 5,
        "documents": 1,
        "shards": (shard(0), shard(1)),
    }
    return SplitManifest(**{**values, **changes})


def manifest(**changes):
    values = {
        "format_version": FORMAT_VERSION,
        "corpus_name": "corpus",
        "tokenizer_kind": "bytes",
        "tokenizer_sha256": "cd" * 32,
        "vocabulary_size": 256,
        "token_bytes": 1,
        "tokens_per_record": 16,
        "splits": (split(),),
    }
    return Manifest(**{**values, **changes})
