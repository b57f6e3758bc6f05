"""Errors that end a job, each with an exit code for supervisors, and blocks that raise them.

The library raises `ValueError` for wrong arguments of Python. These classes report what a user of
the command line can mend: files, folders, settings, devices. Their text has at most three lines:
the problem, its place, the remedy.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator

_LONGEST_NAME = 100


def did_you_mean(name: str, known: Iterable[str], similarity: float = 0.6) -> str:
    """Suggests known names, as in `" Did you mean top_p?"`; empty if no known name is similar."""
    # Imported here because every job imports this module and few need a suggestion.
    import difflib

    # Names from files may hold line ends.
    printable = [each for each in known if each.isprintable()]
    near = difflib.get_close_matches(name[:_LONGEST_NAME], printable, n=2, cutoff=similarity)
    return f" Did you mean {' or '.join(near)}?" if near else ""


class JobError(Exception):
    """Base of the errors that a job reports without a traceback.

    `what` states the problem in one line, `where` names the file, record, line or argument, and
    `remedy` tells the user what to do.
    """

    exit_code = 70

    def __init_subclass__(cls, exit_code: int) -> None:
        super().__init_subclass__()
        cls.exit_code = exit_code

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__("\n".join(line for line in (what, where, remedy) if line))


class UsageError(JobError, exit_code=2):
    """The command line or a configuration file asks for something impossible."""


class DataDamagedError(JobError, exit_code=65):
    """A file differs from its manifest, or text is not usable."""


class InputMissingError(JobError, exit_code=66):
    """A file, folder, device, worker or package that is needed does not exist."""


class NonFiniteError(JobError, exit_code=70):
    """A loss, a gradient, a state or a prediction is not a finite number."""


class OutputExistsError(JobError, exit_code=73):
    """The output exists already, or another process writes it."""


class StorageError(JobError, exit_code=74):
    """Reading, writing or a connection failed: disk full, no permission, no port, lost process."""


class PreemptedError(JobError, exit_code=75):
    """The job was asked to stop and has saved its work; it can be started again."""


class BackendError(JobError, ImportError, exit_code=78):
    """Keras runs on a backend that this part of the package does not support."""


class MismatchError(JobError, exit_code=78):
    """Configuration, vocabulary or data set differ from the stored ones."""


def first_line(error: BaseException) -> str:
    """Returns up to 200 characters of an error's first line, or its class name if it is empty."""
    # TensorFlow writes its operation before the reason, and at greater length.
    text = re.sub(r"^\{\{.*?\}\} ", "", str(error).strip())
    return (text.splitlines() or [type(error).__name__])[0][:200]


@contextlib.contextmanager
def errors_as(
    job_error: type[JobError],
    kinds: type[Exception] | tuple[type[Exception], ...],
    what: str,
    where: str,
    remedy: str,
) -> Iterator[None]:
    """Raises a `job_error` for errors of some kinds in the block; its text begins with `what`."""
    try:
        yield
    except kinds as error:
        raise job_error(f"{what}: {first_line(error)}", where=where, remedy=remedy) from error


def storage_errors(
    what: str, where: str, remedy: str = "Check the storage and the permissions."
) -> contextlib.AbstractContextManager[None]:
    """Turns an OSError of the block into a StorageError, see `errors_as`."""
    return errors_as(StorageError, OSError, what, where, remedy)
