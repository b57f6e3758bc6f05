"""Errors that end a job, each with the exit code that a supervisor can act on.

The library raises `ValueError` for a wrong argument. These classes are for what
goes wrong outside the program: files, folders, configurations, devices. Their
text is at most three lines: what is wrong, where, and what to do.
"""

from collections.abc import Iterable

_LONGEST_NAME = 100


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a question with the known names that are nearest, to follow a sentence.

    Args:
        name: str. A name that is not known.
        known: iterable of str. The names that are.

    Returns:
        str such as `" Did you mean top_p?"`; empty where none is near.
    """
    # Not at the top: every job and worker imports this module, and few misspell a name.
    import difflib

    near = difflib.get_close_matches(name[:_LONGEST_NAME], list(known), n=2, cutoff=0.6)
    return f" Did you mean {' or '.join(near)}?" if near else ""


class JobError(Exception):
    """Base of the errors that a job reports without a traceback.

    Args:
        what: str. What is wrong, in one line.
        where: str. The file, record, line or argument it was found in.
        remedy: str. What the user can do about it.
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
    """A file is not what its manifest says it is, or text is not usable."""


class InputMissingError(JobError, exit_code=66):
    """A file or folder that was named does not exist."""


class NonFiniteError(JobError, exit_code=70):
    """A loss or a gradient is not a finite number."""


class OutputExistsError(JobError, exit_code=73):
    """The output is already there, or somebody else is writing it."""


class StorageError(JobError, exit_code=74):
    """Reading or writing failed: disk full, no permission, device error."""


class PreemptedError(JobError, exit_code=75):
    """The job was asked to stop and has saved its work; it can be started again."""


class BackendError(JobError, ImportError, exit_code=78):
    """Keras computes with another backend than this part of the package."""


class MismatchError(JobError, exit_code=78):
    """Configuration, vocabulary or data set differ from what is stored."""
