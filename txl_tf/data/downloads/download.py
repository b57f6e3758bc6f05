"""Fetches a published file, going on where a broken download stopped."""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping

from txl_tf.data.downloads.file_transfer import FileTransfer, Progress
from txl_tf.data.downloads.partial_file import PartialFile
from txl_tf.data.downloads.published_file import PublishedFile
from txl_tf.errors import DataDamagedError, InputMissingError, OutputExistsError, StorageError
from txl_tf.local_files import open_for_writing


def download(
    file: PublishedFile,
    folder: str,
    *,
    max_attempts: int = 6,
    pause_seconds: float = 1.0,
    timeout_seconds: float = 60.0,
    proxies: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> str:
    """Fetches a file into a folder, unless it is there.

    The file has its name only when it is complete and, as far as they are
    known, has the right size and SHA-256. Until then it is `NAME.partial`,
    which a later call continues: the rest is asked for by range, on the
    condition that the file has not changed since. A server without ranges
    sends everything again.

    A failed connection, a silent server and the answers 408, 425, 429 and 5xx
    are tried again, after a pause that doubles every time. An attempt that
    brought the download further than any before does not count.

    Args:
        file: `PublishedFile`. What to fetch.
        folder: str. Where to put it; made if it does not exist.
        max_attempts: int. Attempts for one address without any progress.
            Defaults to `6`.
        pause_seconds: float. The first pause. Defaults to `1.0`.
        timeout_seconds: float. How long a server may be silent. Defaults to
            `60.0`.
        proxies: optional mapping of scheme to the address of a proxy. Defaults
            to none, whatever the environment says.
        progress: optional function, called with the bytes there are and the
            bytes of the whole file, or `None` where that is not known.

    Returns:
        The path of the file.

    Raises:
        InputMissingError: If no address has the file.
        DataDamagedError: If what was fetched is another file. It is then beside
            the target, as `NAME.damaged`.
        OutputExistsError: If another process is fetching the same file.
        StorageError: If it cannot be fetched or written.
    """
    target = os.path.join(os.path.abspath(folder), file.name)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with _locked(target):
            if _is_there(file, target):
                return target
            partial = PartialFile(target)
            transfers = [
                FileTransfer(
                    file,
                    url,
                    partial,
                    max_attempts=max_attempts,
                    pause_seconds=pause_seconds,
                    timeout_seconds=timeout_seconds,
                    proxies=proxies or {},
                    progress=progress,
                )
                for url in file.urls
            ]
            _run_first_that_works(file, transfers)
            partial.publish()
            return target
    except OSError as error:
        raise StorageError(
            f"Writing the download failed: {error.strerror or error}",
            where=target,
            remedy="Check free space and permissions; a next try goes on from here.",
        ) from error


def _run_first_that_works(file: PublishedFile, transfers: list[FileTransfer]) -> None:
    errors: list[InputMissingError | StorageError] = []
    for transfer in transfers:
        try:
            transfer.run()
            return
        except (InputMissingError, StorageError) as error:
            errors.append(error)
    # An address that failed may have the file after all; that is the news then.
    failed = [error for error in errors if isinstance(error, StorageError)]
    raise (failed or errors or [InputMissingError(f"{file.name} has no address.")])[0]


def _is_there(file: PublishedFile, target: str) -> bool:
    if not os.path.exists(target):
        return False
    try:
        file.check(target)
        return True
    except DataDamagedError:
        os.replace(target, f"{target}.damaged")
        return False


@contextlib.contextmanager
def _locked(target: str) -> Iterator[None]:
    """Holds a lock beside the target; it ends with the process."""
    descriptor = open_for_writing(f"{target}.lock", reads=True)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputExistsError(
                "Another process is downloading this file.",
                where=target,
                remedy="Wait for it to end, or name another folder.",
            ) from error
        yield
    finally:
        os.close(descriptor)
