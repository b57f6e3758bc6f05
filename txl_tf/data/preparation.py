"""Preparation of a data set from text: records, vocabulary and manifest."""

import contextlib
import importlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from txl_tf.data.encoding import EncodedBatch, EncodedSplits
from txl_tf.data.manifest import (
    FORMAT_VERSION,
    MANIFEST_FILE,
    Manifest,
    ShardManifest,
    SplitManifest,
)
from txl_tf.data.records import SHARD_BYTES, TOKENS_PER_RECORD, RecordWriter
from txl_tf.data.text import Splits, TextCounts
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.vocabulary_training import VocabularyTraining
from txl_tf.data.workers import OrderedWorkers
from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.storage.files import is_remote, write_file
from txl_tf.storage.staging import StagingFolder

Progress = Callable[[str, int], None]
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
        num_workers: int. Processes that tokenize. Defaults to `1`: the calling process.
        check: optional function of the splits written, the vocabulary size and the number of ids
            that occur. It is called before the folder gets its name; an exception prevents that.
        progress: optional function, called with the name of the split and the bytes of text read
            since the last call. Building a vocabulary takes a separate pass.

    Raises:
        OutputExistsError: If the folder exists or is being written.
        DataDamagedError: If there is no split, a split has no text, or the tokenizer cannot encode
            the text.
        StorageError: If writing fails; nothing is left behind.
    """
    check_not_empty(splits, corpus_name)
    if progress is None:
        progress = _ignore
    sizes = {"tokens_per_record": tokens_per_record, "shard_bytes": shard_bytes}
    with (
        _storage_errors(output_folder),
        contextlib.nullcontext() if tokenizer.uses_tensorflow else _tensorflow_loading(),
        StagingFolder(output_folder, last_file=MANIFEST_FILE) as staging,
        OrderedWorkers(num_workers) as workers,
    ):
        scratch = tempfile.TemporaryDirectory(dir=None if is_remote(staging.path) else staging.path)
        with scratch as scratch_folder:
            if isinstance(tokenizer, VocabularyTraining):
                texts = tokenizer.tokenize(splits, workers, scratch_folder, progress)
            else:
                texts = EncodedSplits(splits, tokenizer, workers)
            used_ids = np.zeros(texts.tokenizer.vocabulary_size, bool)
            written = []
            for name in splits:
                token_bytes = texts.tokenizer.token_dtype.itemsize
                with RecordWriter(staging.path, name, token_bytes=token_bytes, **sizes) as writer:
                    batches = texts.batches(name)
                    written.append(write_split(writer, name, batches, used_ids, progress))
        if check is not None:
            check(written, len(used_ids), int(np.count_nonzero(used_ids)))
        manifest = describe(texts.tokenizer, corpus_name, tokens_per_record, written)
        staging.publish(write_descriptions(staging.path, texts.tokenizer, manifest))
        return manifest


def write_split(
    writer: RecordWriter,
    name: str,
    batches: Iterable[EncodedBatch],
    used_ids: np.ndarray,
    progress: Progress,
) -> SplitManifest:
    """Writes the records of a split and marks the ids that occur in `used_ids`.

    Raises DataDamagedError if there are no tokens, ValueError for an id outside the vocabulary.
    """
    counts = TextCounts()
    for batch in batches:
        _note_used(batch.token_ids, used_ids)
        writer.write(batch.token_ids, document_starts=batch.document_starts.tolist())
        counts = counts.plus(batch.counts)
        progress(name, batch.counts.bytes)
    return describe_split(name, counts, writer.finish())


def check_not_empty(splits: Splits, corpus_name: str) -> None:
    """Raises DataDamagedError if there are no splits, ValueError if one is no list of documents."""
    if not splits:
        what = "The input is empty: it has no splits."
        raise DataDamagedError(what, where=corpus_name, remedy="Give at least one split.")
    for name, documents in splits.items():
        if isinstance(documents, str | bytes):
            raise ValueError(
                "`splits` must hold lists of documents. "
                f"Received: {name!r} is a {type(documents).__name__}"
            )


def describe_split(
    name: str, counts: TextCounts, shards: tuple[ShardManifest, ...]
) -> SplitManifest:
    """Returns the manifest of a split; raises DataDamagedError if it has no token or no text."""
    if not shards or not counts.bytes:
        raise empty_split(name)
    tokens = sum(shard.tokens for shard in shards)
    return SplitManifest(name=name, tokens=tokens, shards=shards, **counts._asdict())


def empty_split(name: str) -> DataDamagedError:
    """Creates the error about a split without tokens."""
    return DataDamagedError(
        "A split of the input is empty.",
        where=f"split {name}",
        remedy="Give more text, or leave this split out.",
    )


def describe(
    tokenizer: Tokenizer, corpus_name: str, tokens_per_record: int, splits: list[SplitManifest]
) -> Manifest:
    """Returns the manifest of the written splits."""
    return Manifest(
        format_version=FORMAT_VERSION,
        corpus_name=corpus_name,
        tokenizer_kind=tokenizer.kind,
        tokenizer_sha256=tokenizer.fingerprint,
        vocabulary_size=tokenizer.vocabulary_size,
        token_bytes=tokenizer.token_dtype.itemsize,
        tokens_per_record=tokens_per_record,
        splits=tuple(splits),
    )


def write_descriptions(folder: str, tokenizer: Tokenizer, manifest: Manifest) -> list[str]:
    """Writes the vocabulary, then the manifest; returns the names of all files of the data set."""
    for name, content in tokenizer.vocabulary_files.items():
        write_file(os.path.join(folder, name), content)
    manifest.write(folder)
    shards = [shard.file for split in manifest.splits for shard in split.shards]
    return [*shards, *tokenizer.vocabulary_files, MANIFEST_FILE]


def _note_used(token_ids: np.ndarray, used_ids: np.ndarray) -> None:
    """Marks the ids that occur; raises ValueError for an id outside the vocabulary."""
    if not token_ids.size:
        return
    if not 0 <= token_ids.min() <= token_ids.max() < len(used_ids):
        raise ValueError(
            f"The tokenizer must give ids in [0, {len(used_ids)}). "
            f"Received: ids from {token_ids.min()} to {token_ids.max()}"
        )
    used_ids[token_ids] = True


@contextlib.contextmanager
def _storage_errors(output_folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _storage_error(error, output_folder) from error
    except Exception as error:
        # Compared by name, because TensorFlow may not be imported.
        if not type(error).__module__.startswith("tensorflow."):
            raise
        raise _storage_error(error, output_folder) from error


def _storage_error(error: Exception, output_folder: str) -> StorageError:
    return StorageError(
        f"Writing the data set failed: {' '.join(str(error).split())}",
        where=output_folder,
        remedy="Check free space and permissions; nothing was left behind.",
    )


@contextlib.contextmanager
def _tensorflow_loading() -> Iterator[None]:
    """Imports TensorFlow in a thread while the workers start.

    Not used if this thread imports TensorFlow too: two imports can deadlock.
    """
    thread = threading.Thread(target=importlib.import_module, args=("tensorflow",))
    thread.start()
    try:
        yield
    finally:
        # A process must not end while a library is being loaded.
        thread.join()


def _ignore(split: str, num_bytes: int) -> None:
    pass
