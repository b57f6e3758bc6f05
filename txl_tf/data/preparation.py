"""Turns text into a prepared data set: records, vocabulary and manifest."""

import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from txl_tf.data.manifest import FORMAT_VERSION, MANIFEST_FILE, Manifest
from txl_tf.data.record_writer import RecordWriter
from txl_tf.data.split_manifest import SplitManifest
from txl_tf.data.staging_folder import StagingFolder
from txl_tf.data.text_counts import TextCounts
from txl_tf.data.tokenizer import Tokenizer
from txl_tf.errors import DataDamagedError, StorageError

# A long document can be given in pieces, so that it need not fit into memory.
Document = bytes | Iterable[bytes]
Progress = Callable[[str, int], None]


def prepare_dataset(
    splits: Mapping[str, Iterable[Document]],
    tokenizer: Tokenizer,
    output_folder: str,
    corpus_name: str,
    *,
    tokens_per_record: int = 32768,
    shard_bytes: int = 100_000_000,
    progress: Progress | None = None,
) -> Manifest:
    """Writes a prepared data set.

    The same text gives the same bytes. The folder appears under its name only
    when it is complete; after an error or a kill there is no such folder.

    Args:
        splits: dict of split name to documents, in the order to be read. A
            document is bytes, or an iterable of bytes that are its pieces; a
            piece is tokenized by itself.
        tokenizer: `Tokenizer`. Turns bytes into token ids.
        output_folder: str. The folder to be made.
        corpus_name: str. Name of the text, for the manifest.
        tokens_per_record: int. Defaults to `32768`.
        shard_bytes: int. Size at which a file ends, in bytes. Defaults to
            `100_000_000`.
        progress: optional function, called with the name of the split and the
            bytes of text done since last.

    Returns:
        The `Manifest` that was written.

    Raises:
        OutputExistsError: If the folder exists or is being written.
        DataDamagedError: If there is no split, or one without text.
        StorageError: If writing fails; nothing is left behind.
    """
    import tensorflow as tf

    if not splits:
        what = "The input is empty: it has no splits."
        raise DataDamagedError(what, where=corpus_name, remedy="Give at least one split.")
    try:
        with StagingFolder(output_folder, last_file=MANIFEST_FILE) as staging:
            written = []
            for name, documents in splits.items():
                with RecordWriter(
                    staging.path,
                    name,
                    token_bytes=tokenizer.token_dtype.itemsize,
                    tokens_per_record=tokens_per_record,
                    shard_bytes=shard_bytes,
                ) as writer:
                    written.append(_write_split(writer, name, documents, tokenizer, progress))
            for name, content in tokenizer.vocabulary_files.items():
                with tf.io.gfile.GFile(os.path.join(staging.path, name), "wb") as file:
                    file.write(content)
            manifest = _describe(tokenizer, corpus_name, tokens_per_record, written)
            manifest.write(staging.path)
            staging.publish()
            return manifest
    except (OSError, tf.errors.OpError) as error:
        raise StorageError(
            f"Writing the data set failed: {' '.join(str(error).split())}",
            where=output_folder,
            remedy="Check free space and permissions; nothing was left behind.",
        ) from error


def _describe(
    tokenizer: Tokenizer, corpus_name: str, tokens_per_record: int, splits: list[SplitManifest]
) -> Manifest:
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


def _write_split(
    writer: RecordWriter,
    name: str,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    progress: Progress | None,
) -> SplitManifest:
    counts = TextCounts()
    for document in documents:
        counts.start_document()
        writer.write(np.zeros(0, tokenizer.token_dtype), document_starts=[0])
        for piece in (document,) if isinstance(document, bytes) else document:
            counts.add(piece)
            writer.write(tokenizer.encode(piece))
            if progress is not None:
                progress(name, len(piece))
    shards = writer.finish()
    if not shards:
        raise DataDamagedError(
            "A split of the input is empty.",
            where=f"split {name}",
            remedy="Give more text, or leave this split out.",
        )
    return SplitManifest(
        name=name,
        tokens=sum(shard.tokens for shard in shards),
        bytes=counts.bytes,
        characters=counts.characters,
        words=counts.words,
        documents=counts.documents,
        shards=shards,
    )
