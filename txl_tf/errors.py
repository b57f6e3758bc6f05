"""Errors that end a job, each with the exit code that a supervisor can act on.

The library raises `ValueError` for a wrong argument. These classes are for what
goes wrong outside the program: files, folders, configurations, devices. Their
text is at most three lines: what is wrong, where, and what to do.
"""


class JobError(Exception):
    """Base of the errors that a job reports without a traceback.

    Args:
        what: str. What is wrong, in one line.
        where: str. The file, record, line or argument it was found in.
        remedy: str. What the user can do about it.
    """

    exit_code = 70

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        self.what = what
        self.where = where
        self.remedy = remedy
        super().__init__("\n".join(line for line in (what, where, remedy) if line))


class UsageError(JobError):
    """The command line or a configuration file asks for something impossible."""

    exit_code = 2


class DataDamagedError(JobError):
    """A file is not what its manifest says it is, or text is not usable."""

    exit_code = 65


class InputMissingError(JobError):
    """A file or folder that was named does not exist."""

    exit_code = 66


class NonFiniteError(JobError):
    """A loss or a gradient is not a finite number."""

    exit_code = 70


class OutputExistsError(JobError):
    """The output is already there, or somebody else is writing it."""

    exit_code = 73


class StorageError(JobError):
    """Reading or writing failed: disk full, no permission, device error."""

    exit_code = 74


class PreemptedError(JobError):
    """The machine is being taken away; the job can be started again."""

    exit_code = 75


class MismatchError(JobError):
    """Configuration, vocabulary or data set differ from what is stored."""

    exit_code = 78
