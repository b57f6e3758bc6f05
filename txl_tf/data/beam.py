"""Preparation of a data set from text with Apache Beam."""

import dataclasses
import functools
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from txl_tf.data.encoding import BatchEncoder
from txl_tf.data.manifest import (
    MANIFEST_FILE,
    Manifest,
    ShardManifest,
    SplitManifest,
    shard_file_name,
)
from txl_tf.data.preparation import (
    Check,
    check_not_empty,
    describe,
    describe_split,
    empty_split,
    write_descriptions,
)
from txl_tf.data.records import (
    SHARD_BYTES,
    TOKENS_PER_RECORD,
    RecordWriter,
    frame_bytes,
    token_dtype,
)
from txl_tf.data.text import DocumentPiece, Splits, TextCounts, work_batches
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.vocabulary_training import VocabularyTraining
from txl_tf.data.workers import OrderedWorkers
from txl_tf.imports import require_extra
from txl_tf.storage.files import make_folder, read_file, remove_folder, write_file
from txl_tf.storage.staging import StagingFolder

_RESULTS = "results"
_Batch = tuple[str, int, list[DocumentPiece]]
"""Name of the split, number of the batch, and its pieces."""


def prepare_with_beam(
    splits: Splits,
    tokenizer: Tokenizer | VocabularyTraining,
    output_folder: str,
    corpus_name: str,
    beam_arguments: Sequence[str] = (),
    *,
    tokens_per_record: int = TOKENS_PER_RECORD,
    shard_bytes: int = SHARD_BYTES,
    num_workers: int = 1,
    check: Check | None = None,
) -> Manifest:
    """Writes a prepared data set, with the same bytes as `prepare_dataset`.

    Two pipelines run one after the other. The first counts the tokens of every batch of text; the
    sums give the first token of each batch. The second tokenizes again and writes the tokens to
    their places. Processes of the local machine build the vocabulary before, if needed.

    Every machine must read the text under the same paths and write into the output folder, which
    may be remote (`gs://`).

    Args:
        splits: dict of split name to documents that can be pickled and iterated more than once.
        tokenizer: `Tokenizer` or `VocabularyTraining`.
        output_folder: str. The folder to be made.
        corpus_name: str. Name of the text, for the manifest.
        beam_arguments: sequence of str. Options of Beam, such as `--runner=DataflowRunner`.
            Defaults to none, which runs Beam locally.
        tokens_per_record: int. Defaults to `4096`.
        shard_bytes: int. Size at which a file ends, in bytes; a worker holds one file in memory.
            Defaults to `16_000_000`.
        num_workers: int. Processes that build the vocabulary. Defaults to `1`.
        check: optional function, as for `prepare_dataset`.

    Raises:
        UsageError: If the package `apache-beam` is not installed.
        OutputExistsError: If the folder exists or is being written.
        DataDamagedError: If there is no split, or one without text.
    """
    check_not_empty(splits, corpus_name)
    require_extra("beam", "apache_beam", purpose="A Beam pipeline", where="--runner beam")
    with StagingFolder(output_folder, last_file=MANIFEST_FILE) as staging:
        if isinstance(tokenizer, VocabularyTraining):
            with OrderedWorkers(num_workers) as workers:
                tokenizer = tokenizer.train(splits, workers, lambda split, num_bytes: None)
        results = os.path.join(staging.path, _RESULTS)
        make_folder(results)
        run = functools.partial(_run, splits, results, beam_arguments)
        counted = run("counting", TokenCounting(tokenizer).apply)
        sizes = (tokens_per_record, tokenizer.token_dtype.itemsize, shard_bytes)
        plans = {name: _plan(name, counted, sizes) for name in splits}
        placing = TokenPlacing(tokenizer, plans)
        writing = ShardWriting(staging.path, plans, tokenizer.vocabulary_size)
        shards = run("writing", lambda batches: writing.apply(placing.apply(batches)))
        remove_folder(results)
        written = [_describe_split(name, counted, shards) for name in splits]
        if check is not None:
            check(written, tokenizer.vocabulary_size, _num_used(shards))
        manifest = describe(tokenizer, corpus_name, tokens_per_record, written)
        staging.publish(write_descriptions(staging.path, tokenizer, manifest))
        return manifest


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
    transform: Callable[[Any], Any],
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
            transform(batches)
            | "Together" >> beam.WithKeys(None)
            | "Gather" >> beam.GroupByKey()
            | "Results" >> beam.Map(functools.partial(_write_results, path))
        )
    return json.loads(read_file(path))


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """Place of every token, the same as `RecordWriter` gives it."""

    batch_tokens: tuple[int, ...]
    tokens_per_record: int
    token_bytes: int
    shard_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return sum(self.batch_tokens)

    @property
    def tokens_per_shard(self) -> int:
        """Tokens of every shard except the last."""
        frame = frame_bytes(self.tokens_per_record, self.token_bytes)
        return max(1, self.shard_bytes // frame) * self.tokens_per_record

    @property
    def num_shards(self) -> int:
        """Shards of the split."""
        return -(-self.num_tokens // self.tokens_per_shard)

    def batch_starts(self) -> np.ndarray:
        """Returns the first token of every batch, as an int64 vector."""
        return np.cumsum([0, *self.batch_tokens[:-1]], dtype=np.int64)


def _plan(name: str, counted: list[dict[str, Any]], sizes: tuple[int, int, int]) -> ShardPlan:
    batches = sorted((each["batch"], each["tokens"]) for each in counted if each["split"] == name)
    plan = ShardPlan(tuple(tokens for _, tokens in batches), *sizes)
    if not plan.num_tokens:
        raise empty_split(name)
    return plan


def _describe_split(
    name: str, counted: list[dict[str, Any]], written: list[dict[str, Any]]
) -> SplitManifest:
    counts = TextCounts()
    for each in counted:
        if each["split"] == name:
            counts = counts.plus(TextCounts(*each["counts"]))
    found = sorted((each["number"], each["shard"]["file"]) for each in written)
    by_file = {each["shard"]["file"]: each["shard"] for each in written if each["split"] == name}
    shards = tuple(ShardManifest(**by_file[file]) for _, file in found if file in by_file)
    return describe_split(name, counts, shards)


def _num_used(written: list[dict[str, Any]]) -> int:
    bits = [np.frombuffer(bytes.fromhex(each["used"]), np.uint8) for each in written]
    return int(np.unpackbits(np.bitwise_or.reduce(bits)).sum())


class ShardWriting:
    """Writing of shards for a Beam pipeline, each into a temporary folder first.

    Beam may repeat work in parallel; the bytes are equal, and the last rename wins.
    """

    def __init__(self, folder: str, plans: Mapping[str, ShardPlan], vocabulary_size: int) -> None:
        self._folder = folder
        self._plans = dict(plans)
        self._vocabulary_size = vocabulary_size

    def __call__(self, item: tuple[tuple[str, int], Iterable[Any]]) -> dict[str, Any]:
        """Writes a shard from its parts in any order; returns JSON values.

        The values are split, number, shard manifest, and the ids that occur as hexadecimal bits.
        Raises ValueError if tokens are missing or an id is not in the vocabulary.
        """
        (split, number), parts = item
        plan = self._plans[split]
        tokens, starts = _gathered(parts, token_dtype(plan.token_bytes))
        expected = min(plan.tokens_per_shard, plan.num_tokens - number * plan.tokens_per_shard)
        if len(tokens) != expected or not 0 <= tokens.min() <= tokens.max() < self._vocabulary_size:
            raise ValueError(
                f"A shard must have {expected} tokens with ids below {self._vocabulary_size}. "
                f"Received: {len(tokens)} tokens, ids from {tokens.min()} to {tokens.max()}"
            )
        used = np.zeros(self._vocabulary_size, bool)
        used[tokens] = True
        return {
            "split": split,
            "number": number,
            "shard": self._write(split, number, tokens, starts),
            "used": np.packbits(used).tobytes().hex(),
        }

    def apply(self, shards: Any) -> Any:
        """Writes the shards of a Beam collection, in the second pipeline."""
        import apache_beam as beam

        return shards | "Write" >> beam.Map(self)

    def _write(
        self, split: str, number: int, tokens: np.ndarray, starts: list[int]
    ) -> dict[str, Any]:
        import tensorflow as tf

        plan = self._plans[split]
        own = os.path.join(self._folder, f"shard-{uuid.uuid4().hex}")
        make_folder(own)
        try:
            with RecordWriter(
                own,
                split,
                token_bytes=plan.token_bytes,
                tokens_per_record=plan.tokens_per_record,
                shard_bytes=plan.shard_bytes,
            ) as writer:
                writer.write(tokens, document_starts=starts)
                (shard,) = writer.finish()
            name = shard_file_name(split, number, plan.num_shards)
            target = os.path.join(self._folder, name)
            tf.io.gfile.rename(os.path.join(own, shard.file), target, overwrite=True)
        finally:
            remove_folder(own)
        return {**shard.to_dict(), "file": name}


def _gathered(parts: Iterable[Any], dtype: np.dtype) -> tuple[np.ndarray, list[int]]:
    ordered = sorted(parts, key=lambda part: part[0])
    starts = sorted({place for part in ordered for place in part[2]})
    return np.frombuffer(b"".join(part[1] for part in ordered), dtype), starts


class TokenCounting:
    """Counts of tokens and text per batch, for a Beam pipeline."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encoding = BatchEncoder(tokenizer)

    def __call__(self, batch: _Batch) -> dict[str, Any]:
        """Counts a batch of split, number and pieces; returns JSON values."""
        split, number, pieces = batch
        tokens = self._encoding(pieces)
        return {
            "split": split,
            "batch": number,
            "tokens": len(tokens.token_ids),
            "counts": list(tokens.counts),
        }

    def apply(self, batches: Any) -> Any:
        """Returns the counts of a Beam collection, in the first pipeline."""
        import apache_beam as beam

        return batches | "Count" >> beam.Map(self)


class _Part(NamedTuple):
    """Consecutive tokens of a shard, and the starts of documents within them."""

    first_token: int
    tokens: bytes
    document_starts: list[int]


class TokenPlacing:
    """Division of the tokens of batches at shard ends, for a Beam pipeline."""

    def __init__(self, tokenizer: Tokenizer, plans: Mapping[str, ShardPlan]) -> None:
        self._encoding = BatchEncoder(tokenizer)
        self._plans = dict(plans)
        self._starts = {name: plan.batch_starts() for name, plan in plans.items()}

    def __call__(self, batch: _Batch) -> Iterator[tuple[tuple[str, int], _Part]]:
        """Yields pairs of shard (split, number) and part for a batch of split, number and pieces.

        Raises ValueError if the text differs from the one that was counted.
        """
        split, number, pieces = batch
        plan = self._plans[split]
        tokens = self._encoding(pieces)
        if len(tokens.token_ids) != plan.batch_tokens[number]:
            raise ValueError(
                "The text must be the same in both passes. Received: "
                f"{len(tokens.token_ids)} tokens in batch {number} of `{split}`, "
                f"{plan.batch_tokens[number]} before"
            )
        first = int(self._starts[split][number])
        places = first + tokens.document_starts
        # An empty document at the end of the stream has no first token.
        places = places[places < plan.num_tokens]
        size = plan.tokens_per_shard
        stop = first + len(tokens.token_ids)
        last_place = int(places[-1]) if places.size else first
        after_last = min(max(stop - 1, last_place) // size + 1, plan.num_shards)
        for shard in range(first // size, after_last):
            start, end = shard * size, (shard + 1) * size
            part = tokens.token_ids[max(0, start - first) : max(0, end - first)]
            here = places[(places >= start) & (places < end)] - start
            yield (
                (split, shard),
                _Part(max(first, start) - start, part.tobytes(), np.unique(here).tolist()),
            )

    def apply(self, batches: Any) -> Any:
        """Returns the parts of a Beam collection grouped by shard, in the second pipeline."""
        import apache_beam as beam

        return batches | "Place" >> beam.FlatMap(self) | "Shard" >> beam.GroupByKey()
