"""Preparation of a data set from text with Apache Beam."""

import dataclasses
import functools
import json
import operator
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from txl_tf.data.prepared_dataset import SplitManifest
from txl_tf.data.records import (
    RecordSizes,
    RecordWriter,
    ShardManifest,
    shard_file_name,
    token_dtype,
)
from txl_tf.data.text import DocumentPiece, Splits, TextCounts, work_batches
from txl_tf.data.tokenizers.tokenizer import BatchEncoder, Tokenizer
from txl_tf.imports import tensorflow as tf
from txl_tf.storage.files import make_folder, read_file, remove_folder, write_file

_RESULTS = "results"
_Batch = tuple[str, int, list[DocumentPiece]]
"""Name of the split, number of the batch, and its pieces."""
_Part = tuple[int, bytes, list[int]]
"""First token, consecutive tokens of a shard, and the starts of documents within the shard."""


def write_with_beam(
    splits: Splits,
    tokenizer: Tokenizer,
    folder: str,
    sizes: RecordSizes,
    *,
    beam_arguments: Sequence[str],
) -> tuple[list[SplitManifest], int]:
    """Writes the records; returns their splits and the number of ids that occur.

    Two pipelines run one after the other. The first counts the tokens of every batch of text; the
    sums give the first token of each batch. The second tokenizes again and writes the tokens to
    their places. A worker holds one file in memory.
    """
    results = os.path.join(folder, _RESULTS)
    make_folder(results)
    run = functools.partial(_run, splits, results, beam_arguments)
    encode = BatchEncoder(tokenizer)
    count = functools.partial(count_tokens, encode)
    counted = run("counting", lambda batches, beam: batches | "Count" >> beam.Map(count))
    counted.sort(key=operator.itemgetter("batch"))
    plans = {
        name: ShardPlan(tuple(each["tokens"] for each in counted if each["split"] == name), sizes)
        for name in splits
    }
    place = functools.partial(place_tokens, encode, plans)
    write_one = functools.partial(write_shard, folder, plans, tokenizer.vocabulary_size)

    def write_all(batches: Any, beam: Any) -> Any:
        shards = batches | "Place" >> beam.FlatMap(place) | "Shard" >> beam.GroupByKey()
        return shards | "Write" >> beam.Map(write_one)

    # Without a token there is no shard, and nothing to gather.
    has_tokens = any(each["tokens"] for each in counted)
    shards = run("writing", write_all) if has_tokens else []
    remove_folder(results)
    return [_describe_split(name, counted, shards) for name in splits], _num_used(shards)


def _numbered_batches(splits: Splits, split: str) -> Iterator[_Batch]:
    for number, pieces in enumerate(work_batches(split, splits[split])):
        yield split, number, pieces


def _write_results(path: str, item: tuple[None, Iterable[dict[str, Any]]]) -> None:
    """Writes the results of a pipeline for the process that started it."""
    write_file(path, json.dumps(list(item[1])).encode())


def _run(
    splits: Splits,
    results: str,
    beam_arguments: Sequence[str],
    name: str,
    transform: Callable[[Any, Any], Any],
) -> list[dict[str, Any]]:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    path = os.path.join(results, f"{name}.json")
    with beam.Pipeline(options=PipelineOptions(list(beam_arguments))) as pipeline:
        batches = (
            pipeline
            | "Splits" >> beam.Create(list(splits))
            | "Spread splits" >> beam.Reshuffle()
            | "Read" >> beam.FlatMap(functools.partial(_numbered_batches, dict(splits)))
            | "Spread batches" >> beam.Reshuffle()
        )
        (
            transform(batches, beam)
            | "Together" >> beam.WithKeys(None)
            | "Gather" >> beam.GroupByKey()
            | "Results" >> beam.Map(functools.partial(_write_results, path))
        )
    return json.loads(read_file(path))


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """Place of every token, the same as `RecordWriter` gives it."""

    batch_tokens: tuple[int, ...]
    sizes: RecordSizes

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return sum(self.batch_tokens)

    @property
    def num_shards(self) -> int:
        """Shards of the split."""
        return -(-self.num_tokens // self.sizes.tokens_per_shard)


def _describe_split(
    name: str, counted: list[dict[str, Any]], written: list[dict[str, Any]]
) -> SplitManifest:
    counts = TextCounts()
    for each in counted:
        if each["split"] == name:
            counts = counts.plus(TextCounts(*each["counts"]))
    ordered = sorted(written, key=operator.itemgetter("number"))
    shards = [ShardManifest(**each["shard"]) for each in ordered if each["split"] == name]
    return SplitManifest.of(name, counts, tuple(shards))


def _num_used(written: list[dict[str, Any]]) -> int:
    bits = [np.frombuffer(bytes.fromhex(each["used"]), np.uint8) for each in written]
    return int(np.unpackbits(np.bitwise_or.reduce(bits)).sum())


def count_tokens(encode: BatchEncoder, batch: _Batch) -> dict[str, Any]:
    """Counts the tokens and the text of a batch; returns JSON values."""
    split, number, pieces = batch
    token_ids, _, counts = encode(pieces)
    return {"split": split, "batch": number, "tokens": len(token_ids), "counts": list(counts)}


def place_tokens(
    encode: BatchEncoder, plans: Mapping[str, ShardPlan], batch: _Batch
) -> Iterator[tuple[tuple[str, int], _Part]]:
    """Divides the tokens of a batch at shard ends; yields pairs of shard (split, number) and part.

    Raises ValueError if the text differs from the one that was counted.
    """
    split, number, pieces = batch
    plan = plans[split]
    token_ids, starts, _ = encode(pieces)
    if len(token_ids) != plan.batch_tokens[number]:
        raise ValueError(
            f"The text must be the same in both passes. Received: {len(token_ids)} tokens in batch "
            f"{number} of `{split}`, {plan.batch_tokens[number]} before"
        )
    first = sum(plan.batch_tokens[:number])
    places = first + starts
    # An empty document at the end of the stream has no first token.
    places = places[places < plan.num_tokens]
    size = plan.sizes.tokens_per_shard
    stop = first + len(token_ids)
    last_place = int(places[-1]) if places.size else first
    after_last = min(max(stop - 1, last_place) // size + 1, plan.num_shards)
    for shard in range(first // size, after_last):
        start, end = shard * size, (shard + 1) * size
        part = token_ids[max(0, start - first) : max(0, end - first)]
        here = places[(places >= start) & (places < end)] - start
        yield (split, shard), (max(first, start) - start, part.tobytes(), np.unique(here).tolist())


def write_shard(
    folder: str,
    plans: Mapping[str, ShardPlan],
    vocabulary_size: int,
    item: tuple[tuple[str, int], Iterable[_Part]],
) -> dict[str, Any]:
    """Writes a shard from its parts in any order, into a temporary folder first.

    Beam may repeat work in parallel; the bytes are equal, and the last rename wins. Returns JSON
    values: split, number, shard manifest, and the ids that occur as hexadecimal bits. Raises
    ValueError if tokens are missing.
    """
    (split, number), parts = item
    plan = plans[split]
    ordered = sorted(parts, key=operator.itemgetter(0))
    tokens = np.frombuffer(
        b"".join(part[1] for part in ordered), token_dtype(plan.sizes.token_bytes)
    )
    expected = min(
        plan.sizes.tokens_per_shard, plan.num_tokens - number * plan.sizes.tokens_per_shard
    )
    if len(tokens) != expected:
        raise ValueError(f"A shard must have {expected} tokens. Received: {len(tokens)}")
    own = os.path.join(folder, f"shard-{uuid.uuid4().hex}")
    make_folder(own)
    try:
        with RecordWriter(own, split, plan.sizes) as writer:
            starts = sorted({place for part in ordered for place in part[2]})
            writer.write(tokens, document_starts=starts)
            (shard,) = writer.finish()
        name = shard_file_name(split, number, plan.num_shards)
        target = os.path.join(folder, name)
        tf.io.gfile.rename(os.path.join(own, shard.file), target, overwrite=True)
    finally:
        remove_folder(own)
    is_used = np.zeros(vocabulary_size, bool)
    is_used[tokens] = True
    return {
        "split": split,
        "number": number,
        "shard": {**shard.to_dict(), "file": name},
        "used": np.packbits(is_used).tobytes().hex(),
    }
