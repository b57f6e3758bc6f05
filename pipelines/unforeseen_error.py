"""Turns whatever ends a job into an error that a user can act on."""

import errno
import os
import sys
import tempfile
import traceback

from txl_tf.errors import JobError, StorageError, UsageError

_DISK_FULL = ("No space left", "Disk quota", "quota exceeded")
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "OOM when allocating")
_FULL = (errno.ENOSPC, errno.EDQUOT)


def explained(error: BaseException) -> JobError:
    """The error that is reported.

    Args:
        error: exception that ended a job.

    Returns:
        The exception itself if it is a `JobError`. Of one that nobody thought
        of, the traceback is written to a file, which the error names.
    """
    if isinstance(error, JobError):
        return error
    if _is_disk_full(error):
        return StorageError(
            f"The disk is full: {_said(error)}",
            where=str(getattr(error, "filename", None) or ""),
            remedy="Make room, and start the same command again.",
        )
    if _is_out_of_memory(error):
        return JobError(
            f"The memory is used up: {_said(error)}",
            remedy="Take fewer rows or replicas, shorter segments or memory, or a larger machine.",
        )
    if isinstance(error, OSError):
        return StorageError(
            error.strerror or _said(error),
            where=str(error.filename or ""),
            remedy="Check the path and the disk.",
        )
    if isinstance(error, UnicodeEncodeError) and _has_surrogate(error.object):
        return UsageError(
            "A path or a text is not UTF-8.",
            where=ascii(error.object),
            remedy="Rename it, or set PYTHONUTF8=1 where the locale is not UTF-8.",
        )
    return JobError(
        f"This was not foreseen: {_said(error)}",
        where=_traceback_place(error),
        remedy="`txl doctor` checks the installation; if it finds nothing, report that file.",
    )


def _has_surrogate(text: str) -> bool:
    """Whether Python has kept bytes in a text that it could not decode."""
    return any("\udc80" <= each <= "\udcff" for each in text)


def _said(error: BaseException) -> str:
    """Kind and text of an exception, in one line."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        lines = []
    # TensorFlow begins with where it was in a graph.
    telling = (line for line in lines if any(text in line for text in _OUT_OF_MEMORY))
    line = next(telling, lines[0] if lines else "").strip()
    kind = type(error).__name__
    return f"{kind}: {line}" if line else kind


def _is_disk_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _FULL
    # TensorFlow's files tell it by the text alone.
    return _is_of_tensorflow(error) and any(text in str(error) for text in _DISK_FULL)


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return _is_of_tensorflow(error) and (
        type(error).__name__ == "ResourceExhaustedError"
        or any(text in str(error) for text in _OUT_OF_MEMORY)
    )


def _is_of_tensorflow(error: BaseException) -> bool:
    # Not imported for it: where it was not, no error is of it.
    tensorflow = sys.modules.get("tensorflow")
    op_error = getattr(getattr(tensorflow, "errors", None), "OpError", None)
    return op_error is not None and isinstance(error, op_error)


def _traceback_place(error: BaseException) -> str:
    """Writes the traceback to a new file that only this user can read."""
    try:
        text = "".join(traceback.format_exception(error))
        # Made anew, never through a link; the name cannot be known before.
        descriptor, path = tempfile.mkstemp(prefix="txl-traceback-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{sys.version}\n{sys.argv!r}\n\n{text}")
    except Exception as failure:
        return f"The traceback could not be written: {_said(failure)}"
    return f"The traceback is in {path}"
