"""Turns text into a prepared data set with Apache Beam."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from txl_tf.data.beam_shards import (
    BatchReading,
    ShardPlan,
    ShardWriting,
    TokenCounting,
    TokenPlacing,
)
from txl_tf.data.manifest import MANIFEST_FILE, Manifest, ShardManifest, SplitManifest
from txl_tf.data.preparation import Check, describe, empty_split, write_descriptions
from txl_tf.data.records import SHARD_BYTES, TOKENS_PER_RECORD
from txl_tf.data.text import Document, TextCounts
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.vocabulary_training import VocabularyTraining
from txl_tf.data.workers import OrderedWorkers
from txl_tf.errors import DataDamagedError
from txl_tf.imports import require_extra
from txl_tf.storage.files import make_folder, read_file, remove_folder, write_file
from txl_tf.storage.staging import StagingFolder

_RESULTS = "results"


def prepare_with_beam(
    splits: Mapping[str, Iterable[Document]],
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

    Two pipelines run one after the other. The first one counts the tokens of
    every batch of text; their sums say where each of them begins. The second
    one makes the tokens again and puts them where they belong. A vocabulary, if
    one is to be made, is made before, by processes of this machine.

    Every machine must be able to read the text under the same paths and to
    write into the output folder, which may be remote (`gs://`).

    Args:
        splits: dict of split name to documents that can be iterated more than
            once, and sent to other machines.
        tokenizer: `Tokenizer` or `VocabularyTraining`.
        output_folder: str. The folder to be made.
        corpus_name: str. Name of the text, for the manifest.
        beam_arguments: sequence of str. Options of Beam, such as
            `--runner=DataflowRunner`. Defaults to none: Beam runs here.
        tokens_per_record: int. Defaults to `4096`.
        shard_bytes: int. Size at which a file ends, in bytes; a machine holds
            one in memory. Defaults to `16_000_000`.
        num_workers: int. Processes that make the vocabulary. Defaults to `1`.
        check: optional function, as for `prepare_dataset`.

    Returns:
        The `Manifest` that was written.

    Raises:
        UsageError: If the package `apache-beam` is not installed.
        OutputExistsError: If the folder exists or is being written.
        DataDamagedError: If there is no split, or one without text.
    """
    if not splits:
        what = "The input is empty: it has no splits."
        raise DataDamagedError(what, where=corpus_name, remedy="Give at least one split.")
    require_extra("beam", "apache_beam", purpose="A Beam pipeline", where="--runner beam")
    with StagingFolder(output_folder, last_file=MANIFEST_FILE) as staging:
        if isinstance(tokenizer, VocabularyTraining):
            with OrderedWorkers(num_workers) as workers:
                tokenizer = tokenizer.train(splits, workers, lambda split, num_bytes: None)
        results = os.path.join(staging.path, _RESULTS)
        make_folder(results)
        reading = BatchReading(splits)
        counted = _run(reading, _Counting(tokenizer), list(splits), results, beam_arguments)
        sizes = (tokens_per_record, tokenizer.token_dtype.itemsize, shard_bytes)
        plans = {name: _plan(name, counted, sizes) for name in splits}
        writing = _Writing(
            TokenPlacing(tokenizer, plans),
            ShardWriting(staging.path, plans, tokenizer.vocabulary_size),
        )
        shards = _run(reading, writing, list(splits), results, beam_arguments)
        remove_folder(results)
        written = [_describe_split(name, counted, shards) for name in splits]
        if check is not None:
            check(written, tokenizer.vocabulary_size, _num_used(shards))
        manifest = describe(tokenizer, corpus_name, tokens_per_record, written)
        staging.publish(write_descriptions(staging.path, tokenizer, manifest))
        return manifest


class _Counting:
    """The transforms of the first pass."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._counting = TokenCounting(tokenizer)

    def apply(self, batches: Any) -> Any:
        import apache_beam as beam

        return batches | "Count" >> beam.Map(self._counting)


class _Writing:
    """The transforms of the second pass."""

    def __init__(self, placing: TokenPlacing, writing: ShardWriting) -> None:
        self._placing = placing
        self._writing = writing

    def apply(self, batches: Any) -> Any:
        import apache_beam as beam

        return (
            batches
            | "Place" >> beam.FlatMap(self._placing)
            | "Shard" >> beam.GroupByKey()
            | "Write" >> beam.Map(self._writing)
        )


class _ResultFile:
    """Result file of a Beam pass, for the process that started the pipeline."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, item: tuple[None, Iterable[dict[str, Any]]]) -> None:
        write_file(self._path, json.dumps(list(item[1])).encode())


def _run(
    reading: BatchReading,
    transforms: _Counting | _Writing,
    splits: list[str],
    results: str,
    beam_arguments: Sequence[str],
) -> list[dict[str, Any]]:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    path = os.path.join(results, f"{type(transforms).__name__.strip('_').lower()}.json")
    with beam.Pipeline(options=PipelineOptions(list(beam_arguments))) as pipeline:
        batches = (
            pipeline
            | "Splits" >> beam.Create(splits)
            | "Spread splits" >> beam.Reshuffle()
            | "Read" >> beam.FlatMap(reading)
            | "Spread batches" >> beam.Reshuffle()
        )
        (
            transforms.apply(batches)
            | "Together" >> beam.WithKeys(None)
            | "Gather" >> beam.GroupByKey()
            | "Results" >> beam.Map(_ResultFile(path))
        )
    return json.loads(read_file(path))


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
    if not counts.bytes:
        raise empty_split(name)
    found = sorted((each["number"], each["shard"]["file"]) for each in written)
    by_file = {each["shard"]["file"]: each["shard"] for each in written if each["split"] == name}
    shards = tuple(ShardManifest(**by_file[file]) for _, file in found if file in by_file)
    tokens = sum(shard.tokens for shard in shards)
    return SplitManifest(name=name, tokens=tokens, shards=shards, **counts._asdict())


def _num_used(written: list[dict[str, Any]]) -> int:
    bits = [np.frombuffer(bytes.fromhex(each["used"]), np.uint8) for each in written]
    return int(np.unpackbits(np.bitwise_or.reduce(bits)).sum())
