"""Reports whatever ends a job or a thread of it: an exit code, and no traceback."""

import contextlib
import signal
import sys
import threading
from typing import Any

from pipelines.printed_error import one_line, printed_error
from pipelines.standard_streams import flush_streams, prepare_streams, reader_has_left
from pipelines.unforeseen_error import explained
from txl_tf.errors import StorageError

INTERRUPTED = 130
"""Exit code of a job that Ctrl-C has ended, 128 and the number of the signal."""
READER_LEFT = 141
"""Exit code where nobody reads the output any more, as of a program that SIGPIPE ends."""


def guard_process() -> None:
    """Prepares the streams, and reports what no job catches because it is not running yet."""
    prepare_streams()
    sys.excepthook = _end_of_process
    threading.excepthook = _end_of_thread
    sys.unraisablehook = _ignored


def report(error: BaseException) -> int:
    """Says what has ended a job.

    Args:
        error: exception.

    Returns:
        The exit code.
    """
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
    """Writes out what was printed.

    Args:
        exit_code: int. Of the job.

    Returns:
        The exit code; that of the output where the job went well and the
        output could not be written.
    """
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
