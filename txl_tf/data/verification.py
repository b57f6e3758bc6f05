"""Verification of a data set: its shards against its manifest."""

import concurrent.futures
import os
from collections.abc import Callable, Iterable

import numpy as np

from txl_tf.data.manifest import MANIFEST_FILE, Manifest, ShardManifest
from txl_tf.errors import DataDamagedError
from txl_tf.storage.files import file_bytes, file_sha256, first_line, list_folder, path_exists
from txl_tf.storage.untrusted_files import listed_file, storage_errors

_REMEDY = "Restore the file, or prepare the data set again."


def verify_shard(
    folder: str,
    shard: ShardManifest,
    progress: Callable[[int], None] | None = None,
    *,
    with_checksums: bool = False,
) -> None:
    """Checks size and SHA-256 of a shard.

    `with_checksums` reads again for the checksums of each record. Raises DataDamagedError, with the
    record if known, or StorageError if the file cannot be read.
    """
    path = os.path.join(folder, shard.file)
    what = None
    with storage_errors("A shard cannot be read", path):
        listed_file(folder, shard.file, listed_in=MANIFEST_FILE, remedy=_REMEDY)
        if (size := file_bytes(path)) != shard.bytes:
            what = f"A shard has {size} bytes; its manifest says {shard.bytes}."
        elif (found := file_sha256(path, progress)) != shard.sha256:
            what = f"A shard has SHA-256 {found}; its manifest says {shard.sha256}."
        if what is None and not with_checksums:
            return
        num_sound = _num_sound_records(path)
    if num_sound != shard.records:
        what = what or "A record does not match its own checksum."
        path = f"{path}, record {min(num_sound, shard.records)}"
    if what is not None:
        raise DataDamagedError(what, where=path, remedy=_REMEDY)


def _num_sound_records(path: str) -> int:
    """Counts the records before the first one that does not match its own checksum."""
    import tensorflow as tf

    records = tf.data.TFRecordDataset(path, buffer_size=4 << 20)
    number = 0
    try:
        # One call releases the GIL and holds no record.
        return int(records.reduce(np.int64(0), lambda count, _: count + 1))
    except tf.errors.DataLossError:
        pass
    except tf.errors.OpError as error:
        raise OSError(first_line(error)) from error
    try:
        for _ in records:
            number += 1
    except tf.errors.DataLossError:
        pass
    return number


def verify_shards(
    folder: str,
    manifest: Manifest,
    progress: Callable[[int], None] | None = None,
    *,
    with_checksums: bool = False,
) -> None:
    """Checks all shards with one thread per core; `progress` is called from the threads.

    Raises DataDamagedError for the first damaged shard in order, StorageError for an unreadable
    file.
    """
    shards = [shard for split in manifest.splits for shard in split.shards]

    def verify(shard: ShardManifest) -> None:
        verify_shard(folder, shard, progress, with_checksums=with_checksums)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as executor:
        results = [executor.submit(verify, shard) for shard in shards]
        try:
            for result in results:
                result.result()
        finally:
            executor.shutdown(cancel_futures=True)


def verify_no_surplus(folder: str, shards: Iterable[ShardManifest]) -> None:
    """Raises DataDamagedError if a folder has record files that its manifest does not name."""
    named = {shard.file for shard in shards}
    for name in list_folder(folder):
        # The listing of an object store may be outdated, so ask for the file itself.
        path = os.path.join(folder, name)
        if ".tfrecord" in name and name not in named and path_exists(path):
            raise DataDamagedError(
                "A record file is not in the manifest.",
                where=path,
                remedy="Remove the file if it is not wanted, or prepare the data set again.",
            )
