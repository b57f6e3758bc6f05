"""Preparation of a data set from text: writes records, vocabulary and manifest."""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from txl_tf.data.prepared_dataset import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    Manifest,
    ShardManifest,
    SplitManifest,
)
from txl_tf.data.records import DOCUMENT_STARTS_FEATURE, TOKENS_FEATURE, frame_bytes
from txl_tf.data.text import DocumentPiece, Splits, TextCounts, map_pieces, work_batches
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.vocabulary_training import Progress, VocabularyTraining
from txl_tf.data.workers import ordered_workers
from txl_tf.errors import DataDamagedError, StorageError, first_line
from txl_tf.imports import tensorflow as tf
from txl_tf.storage.files import file_bytes, file_sha256, write_file
from txl_tf.storage.staging import StagingFolder

TOKENS_PER_RECORD = 4096
"""Default number of tokens in a record. A row that begins in the middle of a record reads the whole
record. With longer records the first step would wait for tokens that it does not need."""
SHARD_BYTES = 16_000_000
"""Default size of a file. Clients of stores may read ahead 64 MiB and more, but not beyond the end
of a file, so the size limits how much a row reads before its first step."""

EncodedBatch = tuple[np.ndarray, np.ndarray, TextCounts]
"""Token ids, the int64 places of those that begin a document, and counts of the text. A place
after the last id stands for the first token of the next batch, because the piece that begins a
document may have no token."""


def prepare_dataset(
    splits: Splits,
    tokenizer: Tokenizer | VocabularyTraining,
    output_folder: str,
    corpus_name: str,
    *,
    tokens_per_record: int = TOKENS_PER_RECORD,
    shard_bytes: int = SHARD_BYTES,
    num_workers: int = 1,
    check: Callable[[list[SplitManifest], int], None] | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Writes a prepared data set.

    The same text gives the same bytes for any number of workers. The folder gets its name only
    when it is complete; after an error or a kill it does not exist.

    Args:
        splits: dict of split name to documents, in reading order. A document is a str, bytes, or an
            iterable of pieces as bytes; each piece is tokenized separately.
        tokenizer: `Tokenizer`, or a `VocabularyTraining` that builds one from the text. The text
            must then be iterable more than once.
        output_folder: str. Folder to write, which must not exist.
        corpus_name: str. Name of the text, for the manifest.
        tokens_per_record: int. Number of tokens in a record. Defaults to `4096`.
        shard_bytes: int. Largest size of a file, in bytes; a file has at least one record.
            Defaults to `16_000_000`.
        num_workers: int. Number of processes that tokenize. Defaults to `1`: the calling process. A
            script with more workers needs `if __name__ == "__main__"`.
        check: optional function of the manifests of the splits and the vocabulary size. It is
            called before the folder gets its name, and may raise an error to prevent this.
        progress: optional function, which is called with the name of a split and the bytes of text
            read since the last call. A vocabulary is built in a pass of its own, which it reports
            too.

    Returns:
        The `Manifest` of the data set.

    Raises:
        OutputExistsError: If the folder exists or is being written.
        DataDamagedError: If there is no split, a split has no text, or the tokenizer cannot encode
            the text.
        StorageError: If writing fails. Nothing is left behind.
    """
    if not splits:
        raise DataDamagedError(
            "The input is empty: it has no splits.",
            where=corpus_name,
            remedy="Give at least one split.",
        )
    for name, documents in splits.items():
        if isinstance(documents, str | bytes):
            raise ValueError(
                "`splits` must hold lists of documents. "
                f"Received: {name!r} is a {type(documents).__name__}"
            )
    report = progress or (lambda split, num_bytes: None)
    with (
        _storage_errors(output_folder),
        StagingFolder(output_folder, last_file=MANIFEST_FILE) as staging,
    ):
        if isinstance(tokenizer, VocabularyTraining):
            tokenizer = tokenizer.train(splits, num_workers, report)
        with ordered_workers(functools.partial(encode_batch, tokenizer), num_workers) as encode_all:

            def encode_split(split: str) -> Iterator[EncodedBatch]:
                for batch in encode_all(work_batches(split, splits[split])):
                    report(split, batch[2].bytes)
                    yield batch

            entries = [
                write_split(name, encode_split(name), staging.path, tokens_per_record, shard_bytes)
                for name in splits
            ]
        if tokenizer.kind == "ids":  # The documents are digits, whose counts mean nothing.
            entries = [split.replace(bytes=0, characters=0, words=0) for split in entries]
        if check is not None:
            check(entries, tokenizer.vocabulary_size)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            corpus_name=corpus_name,
            tokenizer_kind=tokenizer.kind,
            tokenizer_sha256=tokenizer.fingerprint,
            vocabulary_size=tokenizer.vocabulary_size,
            token_bytes=tokenizer.token_dtype.itemsize,
            tokens_per_record=tokens_per_record,
            splits=tuple(entries),
        )
        for name, content in tokenizer.vocabulary_files.items():
            write_file(os.path.join(staging.path, name), content)
        manifest.write(staging.path)
        files = [shard.file for shard in manifest.shards]
        staging.publish([*files, *tokenizer.vocabulary_files, MANIFEST_FILE])
        return manifest


def write_split(
    split: str,
    batches: Iterable[EncodedBatch],
    folder: str,
    tokens_per_record: int,
    shard_bytes: int,
) -> SplitManifest:
    """Writes the shards of a split; only one batch and one record are in memory."""
    counts: list[TextCounts] = []
    records = _records(batches, tokens_per_record, counts)
    shards: list[ShardManifest] = []
    while (first := next(records, None)) is not None:
        partial = os.path.join(folder, f"{split}-{len(shards):05d}.partial")
        width, sizes = first[0].itemsize, []
        per_shard = max(1, shard_bytes // frame_bytes(tokens_per_record, width))
        with tf.io.TFRecordWriter(partial) as writer:
            for record in itertools.chain([first], itertools.islice(records, per_shard - 1)):
                writer.write(_payload(*record))
                sizes.append(len(record[0]))
        num_bytes = sum(frame_bytes(size, width) for size in sizes)
        # Readers compute the offset of a record in the same way.
        if (partial_bytes := file_bytes(partial)) != num_bytes:
            raise OSError(f"{partial} must have {num_bytes} bytes, but has {partial_bytes}")
        shards.append(
            ShardManifest(
                file=partial,
                tokens=sum(sizes),
                records=len(sizes),
                bytes=num_bytes,
                sha256=file_sha256(partial),
            )
        )
    if not shards:
        raise DataDamagedError(
            "A split of the input is empty.",
            where=f"split {split}",
            remedy="Give more text, or leave this split out.",
        )
    for index, shard in enumerate(shards):
        name = f"{split}-{index:05d}-of-{len(shards):05d}.tfrecord"
        tf.io.gfile.rename(shard.file, os.path.join(folder, name))
        shards[index] = shard.replace(file=name)
    num_tokens = sum(shard.tokens for shard in shards)
    of_text = TextCounts.total(counts)
    return SplitManifest(name=split, tokens=num_tokens, shards=tuple(shards), **of_text._asdict())


def _records(
    batches: Iterable[EncodedBatch], tokens_per_record: int, counts: list[TextCounts]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Cuts batches into records: their tokens, and whether each token begins a document.

    Adds the counts of each batch to `counts`.
    """
    # `begins` has one element more than `tokens`, for the token that follows.
    tokens, begins = np.zeros(0, np.uint8), np.zeros(1, bool)
    for token_ids, starts, of_text in batches:
        counts.append(of_text)
        more = np.zeros(len(token_ids) + 1, bool)
        more[starts] = True
        more[0] |= begins[-1]
        tokens = np.concatenate([tokens, token_ids])
        begins = np.concatenate([begins[:-1], more])
        whole = len(tokens) // tokens_per_record * tokens_per_record
        for first in range(0, whole, tokens_per_record):
            record = slice(first, first + tokens_per_record)
            yield tokens[record], begins[record]
        tokens, begins = tokens[whole:], begins[whole:]
    if len(tokens):
        yield tokens, begins[:-1]


def _payload(tokens: np.ndarray, begins: np.ndarray) -> bytes:
    bits = np.packbits(begins, bitorder="little")
    feature = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[values.tobytes()]))
        for name, values in ((TOKENS_FEATURE, tokens), (DOCUMENT_STARTS_FEATURE, bits))
    }
    features = tf.train.Features(feature=feature)
    return tf.train.Example(features=features).SerializeToString(deterministic=True)


def encode_batch(tokenizer: Tokenizer, pieces: Sequence[DocumentPiece]) -> EncodedBatch:
    """Encodes at least one piece; raises DataDamagedError for text that cannot be encoded."""
    parts = map_pieces(tokenizer.encode_piece, pieces)
    places = np.cumsum([0, *map(len, parts[:-1])], dtype=np.int64)
    starts = places[[piece.begins_document for piece in pieces]]
    return np.concatenate(parts), starts, TextCounts.of(pieces)


@contextlib.contextmanager
def _storage_errors(output_folder: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # Errors of TensorFlow are recognized by name, because it may not be imported.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("tensorflow."):
            raise
        raise StorageError(
            f"Writing the data set failed: {first_line(error)}",
            where=output_folder,
            remedy="Check free space and permissions; nothing was left behind.",
        ) from error
