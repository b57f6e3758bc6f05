"""Exit codes of the command, and errors in three lines instead of a traceback."""

import contextlib
import errno
import os
import signal
import sys
import tempfile
import traceback
from typing import TextIO

from txl_tf.errors import JobError, StorageError

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of the signal."""
READER_LEFT = 141
"""Exit code after the reader of a pipe left: 128 plus the number of SIGPIPE."""

MAX_LINE_CHARACTERS = 400
_TAIL_CHARACTERS = 100
_DISK_FULL = ("No space left", "Disk quota", "quota exceeded")
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "ResourceExhausted", "Out of memory", "OOM when")


def printed_error(error: JobError) -> str:
    """Formats an error as one to three lines: what, where, what to do."""
    parts = (error.what, error.where, error.remedy)
    lines = [line for part in parts if (line := one_line(str(part)))]
    first, *others = lines or [type(error).__name__]
    return "\n".join([f"txl: {first}", *(f"  {line}" for line in others)])


def one_line(text: str) -> str:
    """Returns a text as one printable line of at most `MAX_LINE_CHARACTERS`.

    Line breaks become spaces, other control characters and lone surrogates are escaped, and the
    middle of a long text is left out.
    """
    line = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in " ".join(part.strip() for part in text.splitlines()).strip()
    )
    if len(line) <= MAX_LINE_CHARACTERS:
        return line
    gap = f" [... {len(line)} characters ...] "
    head = MAX_LINE_CHARACTERS - _TAIL_CHARACTERS - len(gap)
    return f"{line[:head]}{gap}{line[-_TAIL_CHARACTERS:]}"


def explained(error: BaseException) -> JobError:
    """Converts the exception that ended a job into the error to print.

    The traceback of an unexpected one goes to a file, which the error names.
    """
    if isinstance(error, JobError):
        return error
    lines = str(error).strip().splitlines()
    # TensorFlow's message begins with the place in the graph.
    telling = (line for line in lines if any(text in line for text in _OUT_OF_MEMORY))
    message = f"{type(error).__name__}: {next(telling, lines[0] if lines else '').strip()}"
    number = error.errno if isinstance(error, OSError) else None
    where = str(getattr(error, "filename", None) or "")
    if number in (errno.ENOSPC, errno.EDQUOT) or _is_of_tensorflow(error, _DISK_FULL):
        return StorageError(
            f"The disk is full: {message}",
            where=where,
            remedy="Make room, and start the same command again.",
        )
    if isinstance(error, MemoryError) or _is_of_tensorflow(error, _OUT_OF_MEMORY):
        return JobError(
            f"The memory is full: {message}",
            remedy="Use fewer rows or replicas, shorter segments or memory, or a larger machine.",
        )
    if isinstance(error, OSError):
        return StorageError(error.strerror or message, where=where, remedy="Check path and disk.")
    descriptor, path = tempfile.mkstemp(prefix="txl-traceback-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{sys.version}\n{sys.argv!r}\n\n")
        file.writelines(traceback.format_exception(error))
    return JobError(
        f"Unexpected error: {message}",
        where=f"The traceback is in {path}",
        remedy="Run `txl doctor` to check the installation. If all is well, report the traceback.",
    )


def _is_of_tensorflow(error: BaseException, texts: tuple[str, ...]) -> bool:
    # Before the import, no error is TensorFlow's; importing it here would take seconds.
    tensorflow = sys.modules.get("tensorflow")
    is_error = tensorflow is not None and isinstance(error, tensorflow.errors.OpError)
    return is_error and any(text in str(error) for text in texts)


def report(error: BaseException) -> int:
    """Prints the error that has ended a job, and returns the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        # A second Ctrl-C ends the process silently.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        _print_error("Interrupted.")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError) and isinstance(_flushed(sys.stdout), BrokenPipeError):
        return READER_LEFT
    explanation = explained(error)
    _print_error(printed_error(explanation))
    return explanation.exit_code


def finish(exit_code: int) -> int:
    """Flushes the output; returns `exit_code`, or the flush error's if the job succeeded."""
    failure = _flushed(sys.stdout)
    _flushed(sys.stderr)
    if failure is None or exit_code:
        return exit_code
    return READER_LEFT if isinstance(failure, BrokenPipeError) else report(failure)


def _flushed(stream: TextIO) -> OSError | None:
    """Flushes a standard stream; on an error, returns it and drops the rest."""
    try:
        stream.flush()
    except OSError as error:
        # Python would write the rest at exit, and fail again.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def _print_error(text: str) -> None:
    # Without a reader, only the exit code remains.
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
