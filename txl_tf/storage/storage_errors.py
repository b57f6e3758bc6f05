"""Errors of storage and of readers, turned into errors of jobs."""

import contextlib
from collections.abc import Iterator

from txl_tf.errors import JobError, StorageError
from txl_tf.storage.files import first_line


@contextlib.contextmanager
def errors_as(
    job_error: type[JobError],
    kinds: type[Exception] | tuple[type[Exception], ...],
    what: str,
    where: str,
    remedy: str,
) -> Iterator[None]:
    """Turns errors of some kinds in the block into one of a job, whose text begins with `what`."""
    try:
        yield
    except kinds as error:
        raise job_error(f"{what}: {first_line(error)}", where=where, remedy=remedy) from error


def storage_errors(
    what: str, where: str, remedy: str = "Check the storage and the permissions."
) -> contextlib.AbstractContextManager[None]:
    """Turns an OSError of the block into a StorageError, see `errors_as`."""
    return errors_as(StorageError, OSError, what, where, remedy)
