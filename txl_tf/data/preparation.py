"""Preparation of a data set from text: token ids, records, vocabulary and manifest."""

import contextlib
import functools
import io
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from txl_tf.data.prepared_dataset import FORMAT_VERSION, MANIFEST_FILE, Manifest, SplitManifest
from txl_tf.data.records import SHARD_BYTES, TOKENS_PER_RECORD, RecordSizes, RecordWriter
from txl_tf.data.text import DocumentPiece, Splits, TextCounts, work_batches
from txl_tf.data.tokenizers.tokenizer import BatchEncoder, EncodedBatch, Tokenizer
from txl_tf.data.vocabulary_training import Progress, VocabularyTraining
from txl_tf.data.workers import OrderedWorkers
from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.imports import require_extra
from txl_tf.storage.files import (
    first_line,
    list_folder,
    make_folder,
    read_file,
    remove_folder,
    write_file,
)
from txl_tf.storage.staging import StagingFolder

# Receives the splits written, the vocabulary size, and the number of ids that occur.
Check = Callable[[list[SplitManifest], int, int], None]


def prepare_dataset(
    splits: Splits,
    tokenizer: Tokenizer | VocabularyTraining,
    output_folder: str,
    corpus_name: str,
    *,
    tokens_per_record: int = TOKENS_PER_RECORD,
    shard_bytes: int = SHARD_BYTES,
    num_workers: int = 1,
    check: Check | None = None,
    progress: Progress | None = None,
    beam_arguments: Sequence[str] | None = None,
) -> Manifest:
    """Writes a prepared data set.

    The same text gives the same bytes, whatever the number of workers. The folder gets its name
    only when it is complete; after an error or a kill it does not exist.

    Args:
        splits: dict of split name to documents, in reading order. A document is a str, bytes, or an
            iterable of pieces as bytes; each piece is tokenized separately.
        tokenizer: `Tokenizer`, or `VocabularyTraining` that builds one from the text, which must
            then be iterable more than once.
        output_folder: str. The folder to be made.
        corpus_name: str. Name of the text, for the manifest.
        tokens_per_record: int. Defaults to `4096`.
        shard_bytes: int. Size at which a file ends, in bytes. Defaults to
            `16_000_000`.
        num_workers: int. Processes that tokenize. Defaults to `1`: the calling process. A script
            with more needs `if __name__ == "__main__"`.
        check: optional function of the splits written, the vocabulary size and the number of ids
            that occur. It is called before the folder gets its name; an exception prevents that.
        progress: optional function, called with the name of the split and the bytes of text read
            since the last call. Building a vocabulary takes a separate pass.
        beam_arguments: optional sequence of str. Options of Apache Beam, such as
            `--runner=DataflowRunner`; an empty one runs Beam locally. If given, Beam tokenizes,
            and `num_workers` processes of this machine build the vocabulary before. Documents must
            be picklable. Every machine must read the text under the same paths, and write into the
            output folder, which may be remote (`gs://`).

    Raises:
        OutputExistsError: If the folder exists or is being written.
        DataDamagedError: If there is no split, a split has no text, or the tokenizer cannot encode
            the text.
        StorageError: If writing fails; nothing is left behind.
        UsageError: If Beam is asked for, and the package `apache-beam` is not installed.
    """
    if not splits:
        what = "The input is empty: it has no splits."
        raise DataDamagedError(what, where=corpus_name, remedy="Give at least one split.")
    for name, documents in splits.items():
        if isinstance(documents, str | bytes):
            raise ValueError(
                "`splits` must hold lists of documents. "
                f"Received: {name!r} is a {type(documents).__name__}"
            )
    if beam_arguments is not None:
        require_extra("beam", "apache_beam", purpose="A Beam pipeline", where="--runner beam")
    report = progress or (lambda split, num_bytes: None)
    with (
        _storage_errors(output_folder),
        StagingFolder(output_folder, last_file=MANIFEST_FILE) as staging,
    ):
        if isinstance(tokenizer, VocabularyTraining):
            tokenizer = tokenizer.train(splits, num_workers, report)
        sizes = RecordSizes(tokenizer.token_dtype.itemsize, tokens_per_record, shard_bytes)
        with _encoder(splits, tokenizer, staging.path, num_workers, beam_arguments) as encode:
            written, num_used = _write_splits(
                splits, encode, tokenizer, staging.path, sizes, report
            )
        if check is not None:
            check(written, tokenizer.vocabulary_size, num_used)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            corpus_name=corpus_name,
            tokenizer_kind=tokenizer.kind,
            tokenizer_sha256=tokenizer.fingerprint,
            vocabulary_size=tokenizer.vocabulary_size,
            token_bytes=sizes.token_bytes,
            tokens_per_record=tokens_per_record,
            splits=tuple(written),
        )
        for name, content in tokenizer.vocabulary_files.items():
            write_file(os.path.join(staging.path, name), content)
        manifest.write(staging.path)
        shards = [shard.file for split in manifest.splits for shard in split.shards]
        staging.publish([*shards, *tokenizer.vocabulary_files, MANIFEST_FILE])
        return manifest


def _write_splits(
    splits: Splits,
    encode: Callable[[str], Iterator[EncodedBatch]],
    tokenizer: Tokenizer,
    folder: str,
    sizes: RecordSizes,
    report: Progress,
) -> tuple[list[SplitManifest], int]:
    """Writes the records; returns their splits and the number of ids that occur."""
    is_used = np.zeros(tokenizer.vocabulary_size, bool)
    written = []
    for name in splits:
        with RecordWriter(folder, name, sizes) as writer:
            counts = TextCounts()
            for token_ids, starts, more in encode(name):
                writer.write(token_ids, document_starts=starts.tolist())
                is_used[token_ids] = True
                counts = counts.plus(more)
                report(name, more.bytes)
            if tokenizer.kind == "ids":  # which are no text
                counts = TextCounts(documents=counts.documents)
            written.append(SplitManifest.of(name, counts, writer.finish()))
    return written, int(np.count_nonzero(is_used))


@contextlib.contextmanager
def _encoder(
    splits: Splits,
    tokenizer: Tokenizer,
    folder: str,
    num_workers: int,
    beam_arguments: Sequence[str] | None,
) -> Iterator[Callable[[str], Iterator[EncodedBatch]]]:
    """Provides a function that yields the encoded batches of a split in order.

    Beam writes them into a folder, from which this process reads them.
    """
    encode = BatchEncoder(tokenizer)
    if beam_arguments is None:
        with OrderedWorkers(encode, num_workers) as workers:
            yield lambda name: workers.map(work_batches(name, splits[name]))
        return
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    results = os.path.join(folder, "results")
    make_folder(results)
    with beam.Pipeline(options=PipelineOptions(list(beam_arguments))) as pipeline:
        (
            pipeline
            | "Splits" >> beam.Create(list(splits))
            | "Spread splits" >> beam.Reshuffle()
            | "Read" >> beam.FlatMap(functools.partial(_numbered_batches, dict(splits)))
            | "Spread batches" >> beam.Reshuffle()
            | "Encode" >> beam.MapTuple(functools.partial(_encoded_part, encode))
            | "Group" >> beam.GroupByKey()
            | "Write" >> beam.MapTuple(functools.partial(_write_group, results))
        )
    yield functools.partial(_read_groups, results)
    remove_folder(results)


_BATCHES_PER_GROUP = 32
_Part = tuple[int, EncodedBatch]


def _numbered_batches(splits: Splits, split: str) -> Iterator[tuple[str, int, list[DocumentPiece]]]:
    for number, pieces in enumerate(work_batches(split, splits[split])):
        yield split, number, pieces


def _encoded_part(
    encode: BatchEncoder, split: str, number: int, pieces: list[DocumentPiece]
) -> tuple[tuple[str, int], _Part]:
    return (split, number // _BATCHES_PER_GROUP), (number, encode(pieces))


def _write_group(folder: str, group: tuple[str, int], parts: Iterable[_Part]) -> None:
    """Writes consecutive batches as one; Beam may repeat it, with equal bytes."""
    split, number = group
    batches = [batch for _, batch in sorted(parts, key=operator.itemgetter(0))]
    token_ids, starts, counts = zip(*batches, strict=True)
    places = np.cumsum([0, *map(len, token_ids[:-1])])
    arrays = {
        "token_ids": np.concatenate(token_ids),
        "starts": np.concatenate(
            [each + place for each, place in zip(starts, places, strict=True)]
        ),
        "counts": np.sum(counts, axis=0),
    }
    np.savez(content := io.BytesIO(), **arrays)
    write_file(os.path.join(folder, f"{split}-{number:08d}.npz"), content.getvalue())


def _read_groups(folder: str, split: str) -> Iterator[EncodedBatch]:
    for name in list_folder(folder):
        if name.startswith(f"{split}-"):
            arrays = np.load(io.BytesIO(read_file(os.path.join(folder, name))))
            yield arrays["token_ids"], arrays["starts"], TextCounts(*arrays["counts"].tolist())


@contextlib.contextmanager
def _storage_errors(output_folder: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # TensorFlow's errors are compared by name, because it may not be imported.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("tensorflow."):
            raise
        raise StorageError(
            f"Writing the data set failed: {first_line(error)}",
            where=output_folder,
            remedy="Check free space and permissions; nothing was left behind.",
        ) from error
