"""Preparation of a data set from text: token ids, records, vocabulary and manifest."""

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
"""Tokens of a record unless told otherwise. A row begins in the middle of a record, and the
whole record is read for it: a step of short segments needs little more than that."""
SHARD_BYTES = 16_000_000
"""Size of a file unless told otherwise. Clients of stores read ahead up to the end of a file,
64 MiB and more where nothing stops them: the files bound what a row reads before its first step."""

EncodedBatch = tuple[np.ndarray, np.ndarray, TextCounts]
"""Token ids, the int64 places among them where documents begin, and counts of the text. A place one
past the end stands for the next batch's first token."""


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
        check: optional function of the splits written and the vocabulary size. It is called before
            the folder gets its name; an exception prevents that.
        progress: optional function, called with the name of the split and the bytes of text read
            since the last call. Building a vocabulary takes a separate pass.

    Raises:
        OutputExistsError: If the folder exists or is being written.
        DataDamagedError: If there is no split, a split has no text, or the tokenizer cannot encode
            the text.
        StorageError: If writing fails; nothing is left behind.
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
        if tokenizer.kind == "ids":  # which are no text
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
    """Writes the shards of a split; memory holds one record and one batch."""
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
        # Readers compute the offset of a record from this equality.
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
    """Cuts batches into records: their tokens, and whether a document begins with each.

    Adds the counts of each batch to `counts`.
    """
    # The last place of `begins` belongs to the next token.
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
        # TensorFlow's errors are compared by name, because it may not be imported.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("tensorflow."):
            raise
        raise StorageError(
            f"Writing the data set failed: {first_line(error)}",
            where=output_folder,
            remedy="Check free space and permissions; nothing was left behind.",
        ) from error
