"""Exit codes of the command, and errors in three lines instead of a traceback."""

import contextlib
import ctypes
import errno
import functools
import gc
import importlib
import logging
import os
import signal
import sys
import tempfile
import traceback
import warnings
from types import ModuleType
from typing import TextIO

from txl_tf.errors import JobError, StorageError
from txl_tf.imports import is_on_jax

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of the signal."""
READER_LEFT = 141
"""Exit code after the reader of a pipe left: 128 plus the number of SIGPIPE."""

MAX_LINE_CHARACTERS = 400
_TAIL_CHARACTERS = 100
_QUIET = "3"
# `absl::SetMinLogLevel` in TensorFlow 2.20 and 2.21, which offer no other way.
_SET_MIN_LOG_LEVEL = tuple(
    f"_ZN4absl12lts_{version}14SetMinLogLevelENS0_18LogSeverityAtLeastE"
    for version in (20250127, 20250814)
)
_FATAL = 3
# For converters, plots and wrappers that no job uses. They take a third of the time.
_NOT_NEEDED = ("jax", "matplotlib", "sklearn")
_DISK_FULL = ("No space left", "Disk quota", "quota exceeded")
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "ResourceExhausted", "Out of memory", "OOM when")


def prepare_process() -> None:
    """Silences logs and warnings of libraries, before TensorFlow is imported.

    `TF_CPP_MIN_LOG_LEVEL` shows the log again, `-W` the warnings.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Otherwise the next file opened gets the descriptor, and with it printed text.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A test or a notebook may have replaced the stream by another type.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # Importing TensorFlow creates a million objects, and a search for garbage takes 0.5 of 4 s.
    gc.set_threshold(200_000)
    if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = _QUIET
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        if not sys.warnoptions:
            warnings.simplefilter("ignore")


def load_tensorflow(job: str) -> None:
    """Prints the first line of a job, and imports TensorFlow, which takes seconds.

    Whatever `TF_CPP_MIN_LOG_LEVEL` says, TensorFlow 2.21 writes log lines during its import, and
    2.20 at its first program of XLA. Beside JAX it takes no GPU.
    """
    if "tensorflow" not in sys.modules:
        print(f"txl {job}: loading TensorFlow", file=sys.stderr, flush=True)
        _import_quietly()
    if is_on_jax():
        # It only reads data and writes events.
        importlib.import_module("tensorflow").config.set_visible_devices([], "GPU")
        # It has looked for a TPU during its import; JAX does it now.
        os.environ.pop("TPU_LOAD_LIBRARY", None)


def _import_quietly() -> None:
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != _QUIET:
        import_tensorflow()
        return
    errors, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        tensorflow = import_tensorflow()
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        os.close(nothing)
    with contextlib.suppress(OSError):
        folder = os.path.dirname(tensorflow.__file__ or "")
        library = ctypes.CDLL(os.path.join(folder, "libtensorflow_framework.so.2"))
        for name in filter(functools.partial(hasattr, library), _SET_MIN_LOG_LEVEL):
            getattr(library, name)(_FATAL)


def import_tensorflow() -> ModuleType:
    """Imports TensorFlow without packages that it and Keras import if they are there."""
    backend = os.environ.get("KERAS_BACKEND")
    absent = [name for name in _NOT_NEEDED if name not in sys.modules and name != backend]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        return importlib.import_module("tensorflow")
    finally:
        for name in absent:
            del sys.modules[name]


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
    escaped = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in " ".join(part.strip() for part in text.splitlines()).strip()
    )
    if len(escaped) <= MAX_LINE_CHARACTERS:
        return escaped
    gap = f" [... {len(escaped)} characters ...] "
    head = MAX_LINE_CHARACTERS - _TAIL_CHARACTERS - len(gap)
    return f"{escaped[:head]}{gap}{escaped[-_TAIL_CHARACTERS:]}"


def explained(error: BaseException) -> JobError:
    """Converts the exception that ended a job into the error to print.

    The traceback of an unexpected one goes to a file, which the error names.
    """
    if isinstance(error, JobError):
        return error
    lines = str(error).strip().splitlines()
    # TensorFlow's message begins with the place in the graph.
    telling = (line for line in lines if any(text in line for text in _OUT_OF_MEMORY))
    said = f"{type(error).__name__}: {next(telling, lines[0] if lines else '').strip()}"
    number = error.errno if isinstance(error, OSError) else None
    where = str(getattr(error, "filename", None) or "")
    if number in (errno.ENOSPC, errno.EDQUOT) or _is_of_tensorflow(error, _DISK_FULL):
        remedy = "Make room, and start the same command again."
        return StorageError(f"The disk is full: {said}", where=where, remedy=remedy)
    if isinstance(error, MemoryError) or _is_of_tensorflow(error, _OUT_OF_MEMORY):
        remedy = "Use fewer rows or replicas, shorter segments or memory, or a larger machine."
        return JobError(f"The memory is full: {said}", remedy=remedy)
    if isinstance(error, OSError):
        return StorageError(error.strerror or said, where=where, remedy="Check path and disk.")
    descriptor, path = tempfile.mkstemp(prefix="txl-traceback-", suffix=".txt")
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        text = "".join(traceback.format_exception(error))
        file.write(f"{sys.version}\n{sys.argv!r}\n\n{text}")
    return JobError(
        f"Unexpected error: {said}",
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
