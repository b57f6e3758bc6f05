"""Last line of defence of the command: exit codes, short messages, no traceback."""

import contextlib
import errno
import os
import select
import signal
import sys
import tempfile
import threading
import traceback
from typing import Any

from txl_tf.errors import JobError, StorageError, UsageError

from .native_log import say_farewell

MAX_LINE_CHARACTERS = 400
_TAIL_CHARACTERS = 100


def printed_error(error: JobError) -> str:
    """Formats an error as one to three lines: what, where, what to do."""
    parts = (error.what, error.where, error.remedy)
    lines = [line for part in parts if (line := one_line(str(part)))]
    first, *others = lines or [type(error).__name__]
    return "\n".join([f"txl: {first}", *(f"  {line}" for line in others)])


def one_line(text: str) -> str:
    """Returns a text on one line of at most `MAX_LINE_CHARACTERS` that every terminal can show.

    Line breaks become spaces, other control characters and lone surrogates are
    escaped, and the middle of a long text is left out.
    """
    # Cut first, because to escape a huge text takes long, and then what escapes have added.
    shown = " ".join(part.strip() for part in _cut(text, len(text)).splitlines())
    escaped = "".join(each if each.isprintable() else _escaped(each) for each in shown.strip())
    return _cut(escaped, max(len(text), len(escaped)))


def _cut(text: str, full_length: int) -> str:
    if len(text) <= MAX_LINE_CHARACTERS:
        return text
    gap = f" [... {full_length} characters ...] "
    head = MAX_LINE_CHARACTERS - _TAIL_CHARACTERS - len(gap)
    return f"{text[:head]}{gap}{text[-_TAIL_CHARACTERS:]}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


_NAMES = ("stdin", "stdout", "stderr")


def prepare_streams() -> None:
    """Opens closed standard streams, and lets no printed character be an error.

    The next file to be opened would get a closed descriptor, and printed text
    with it. A character that the terminal does not know is printed as its escape.
    """
    for descriptor, name in enumerate(_NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            _open_null(descriptor)
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        _reconfigure(stream, errors="backslashreplace")
    # Who types on a terminal that is said to be ASCII types UTF-8 all the same.
    is_ascii = (sys.stdin.encoding or "").lower() in ("ascii", "us-ascii", "ansi_x3.4-1968")
    _reconfigure(sys.stdin, errors="replace", **({"encoding": "utf-8"} if is_ascii else {}))


def flush_streams() -> OSError | None:
    """Flushes the standard streams; returns the error of the standard output, if there is one.

    Text that a stream did not take is dropped.
    """
    failure = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            failure = error if stream is sys.stdout else failure
            _forget(stream)
        except ValueError:
            pass  # somebody has closed it
    return failure


def reader_has_left() -> bool:
    """Whether nobody reads any more what is printed."""
    polled = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            polled.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in polled.poll(0))


def _open_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
    os.set_inheritable(descriptor, True)


def _forget(stream: Any) -> None:
    """Redirects a broken stream to the null device, so that exit does not write to it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


def _reconfigure(stream: Any, **options: str) -> None:
    # A stream that a test or a notebook has put in place may be of another kind.
    if hasattr(stream, "reconfigure"):
        with contextlib.suppress(OSError, ValueError):
            stream.reconfigure(**options)


_DISK_FULL = ("No space left", "Disk quota", "quota exceeded")
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "OOM when allocating")
_FULL = (errno.ENOSPC, errno.EDQUOT)


def explained(error: BaseException) -> JobError:
    """Converts the exception that ended a job into the error that is printed.

    The traceback of an unforeseen one is written to a file, which the error names.
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


INTERRUPTED = 130
"""Exit code of a job that Ctrl-C has ended, 128 and the number of the signal."""
READER_LEFT = 141
"""Exit code where nobody reads the output any more, as of a program that SIGPIPE ends."""


def guard_process() -> None:
    """Prepares the standard streams and installs the handler of unhandled exceptions."""
    prepare_streams()
    sys.excepthook = _end_of_process
    threading.excepthook = _end_of_thread
    sys.unraisablehook = _ignored


def is_guarded() -> bool:
    """Whether `guard_process` was called: the process is a job, and no program that imports it."""
    return sys.excepthook is _end_of_process


def report(error: BaseException) -> int:
    """Prints the error that has ended a job, and returns the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        # Once more, and the process ends without a word.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        _say("Interrupted.")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError) and reader_has_left():
        return READER_LEFT
    explanation = explained(error)
    if isinstance(error, OSError) and error.filename is None and flush_streams() is not None:
        explanation = _output_failed(error)
    _say(printed_error(explanation))
    return explanation.exit_code


def finish(exit_code: int) -> int:
    """Flushes the output; returns its error's exit code where the job had none of its own."""
    say_farewell()
    failure = flush_streams()
    if failure is None or exit_code != 0:
        return exit_code
    if isinstance(failure, BrokenPipeError):
        return READER_LEFT
    _say(printed_error(_output_failed(failure)))
    return StorageError.exit_code


def _output_failed(error: OSError) -> StorageError:
    return StorageError(
        f"What was printed could not be written: {error.strerror or error}",
        where="the standard output",
        remedy="Check where the output goes to.",
    )


def _say(text: str) -> None:
    # Where nobody can be told, the exit code has to do.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)


def _end_of_process(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    raise SystemExit(finish(report(error)))


def _end_of_thread(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        report(arguments.exc_value)


def _ignored(arguments: "sys.UnraisableHookArgs") -> None:
    # At the end of a process there may be no module left to report with.
    with contextlib.suppress(Exception):
        _say(f"txl: ignored: {one_line(repr(arguments.exc_value))}")
