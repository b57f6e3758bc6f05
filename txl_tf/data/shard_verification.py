"""Holds the files of a data set against its manifest."""

import concurrent.futures
import os
from collections.abc import Callable, Iterable

from txl_tf.data.shard_manifest import ShardManifest
from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.file_storage import file_sha256

_REMEDY = "Restore the file, or prepare the data set again."


def verify_shard(
    folder: str, shard: ShardManifest, progress: Callable[[int], None] | None = None
) -> None:
    """Checks that a shard is the file that the manifest describes.

    Args:
        folder: str. The folder of the data set.
        shard: `ShardManifest`. What the file must be.
        progress: optional function, called with the bytes read since last.

    Raises:
        DataDamagedError: If the file is missing or differs.
        StorageError: If the file cannot be read.
    """
    import tensorflow as tf

    path = os.path.join(folder, shard.file)
    try:
        size = tf.io.gfile.stat(path).length
        if size != shard.bytes:
            what = f"A shard has {size} bytes; its manifest says {shard.bytes}."
            raise DataDamagedError(what, where=path, remedy=_REMEDY)
        found = file_sha256(path, progress)
    except (FileNotFoundError, tf.errors.NotFoundError) as error:
        what = "A shard that the manifest names is missing."
        raise DataDamagedError(what, where=path, remedy=_REMEDY) from error
    except (OSError, tf.errors.OpError) as error:
        what = f"A shard cannot be read: {' '.join(str(error).split())}"
        raise StorageError(what, where=path, remedy="Check the storage.") from error
    if found != shard.sha256:
        what = f"A shard has SHA-256 {found}; its manifest says {shard.sha256}."
        raise DataDamagedError(what, where=path, remedy=_REMEDY)


def verify_shards(
    folder: str,
    shards: Iterable[ShardManifest],
    progress: Callable[[int], None] | None = None,
) -> None:
    """Checks shards with one thread per core.

    Args:
        folder: str. The folder of the data set.
        shards: iterable of `ShardManifest`. What the files must be.
        progress: optional function, called from the threads with the bytes
            read since last.

    Raises:
        DataDamagedError: For the first shard, in order, that differs.
        StorageError: If a file cannot be read.
    """
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as executor:
        results = [executor.submit(verify_shard, folder, shard, progress) for shard in shards]
        try:
            for result in results:
                result.result()
        finally:
            executor.shutdown(cancel_futures=True)


def verify_no_surplus(folder: str, shards: Iterable[ShardManifest]) -> None:
    """Checks that a folder has no record files but those of its manifest.

    Args:
        folder: str. The folder of the data set.
        shards: iterable of `ShardManifest`. All shards of the data set.

    Raises:
        DataDamagedError: If there is another record file.
    """
    import tensorflow as tf

    named = {shard.file for shard in shards}
    for name in sorted(tf.io.gfile.listdir(folder)):
        if name.endswith(".tfrecord") and name not in named:
            raise DataDamagedError(
                "A record file is not in the manifest.",
                where=os.path.join(folder, name),
                remedy="Remove the file if it is not wanted, or prepare the data set again.",
            )
