"""Filter of what native libraries write: their log stays off the terminal, their errors do not.

TensorFlow, XLA and absl write from C++ to file descriptor 2 at any moment, and no
setting silences all of it. So Python's standard error gets a descriptor of its
own, and descriptor 2 becomes a pipe. A small process reads the pipe: it outlives
an abort, of which a thread of this process would lose the last words.
"""

import collections
import contextlib
import logging
import os
import re
import select
import signal
import sys
import warnings
from typing import NoReturn

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Time and thread of absl, or date and time of TensorFlow, then the place in the source.
_HEADER = re.compile(
    rb"(?:([IWEF])\d{4} \d\d:\d\d:[\d.]+ +\d+|\d{4}-\d\d-\d\d [\d:.]+: ([IWEF])) \S+:\d+\]"
)
_PREAMBLE = re.compile(
    rb"WARNING: (All log messages before absl::InitializeLog|Logging before InitGoogleLogging)"
    rb"|To enable the following instructions"
)
_FAREWELL = b"\0end of txl"
_READ_BYTES = 1 << 16
_NUM_KEPT_LINES = 50
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


def divert_native_log() -> None:
    """Keeps the log of native libraries off the terminal from now on.

    It is called before threads are started and before TensorFlow is imported.
    Everything is shown where the variable `TF_CPP_MIN_LOG_LEVEL` is 0, 1 or 2, and
    where there are no descriptors or processes left.
    """
    if os.environ.get(_LOG_LEVEL) in ("0", "1", "2"):
        return
    _quiet_python()
    with contextlib.suppress(OSError):
        _divert()


def say_farewell() -> None:
    """Tells the filter that the process ends as it should, so that no log explains its death."""
    if sys.stderr is not None and sys.stderr is _state.stream:
        with contextlib.suppress(OSError):
            os.write(2, _FAREWELL + b"\n")


class _State:
    """The stream that has taken the place of the standard error; `None` without a filter."""

    stream: object = None


_state = _State()


def _quiet_python() -> None:
    """Silences warnings of libraries, unless they are asked for with `-W`."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if logging.lastResort is not None:
        # absl makes a logger of a class of its own, which nobody may make before it.
        logging.lastResort.addFilter(
            lambda record: record.name != "absl" or record.levelno >= logging.ERROR
        )


def _divert() -> None:
    sys.stderr.flush()
    terminal = os.dup(2)
    source, sink = os.pipe()
    # Ctrl-C while Python puts its threads in order after the fork would end in a traceback.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED_SIGNALS)
    try:
        if os.fork() == 0:
            _filter(source, terminal)
    except OSError:
        for descriptor in (terminal, source, sink):
            os.close(descriptor)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    os.dup2(sink, 2)
    os.close(source)
    os.close(sink)
    before = sys.stderr
    stream = open(  # noqa: SIM115
        terminal, "w", buffering=1, encoding=before.encoding, errors=before.errors
    )
    # `rich` asks the second for the width of the terminal.
    sys.stderr = sys.__stderr__ = _state.stream = stream  # type: ignore[misc]


def _filter(source: int, terminal: int) -> NoReturn:
    """Body of the filter's process, a fork of this one that never returns to its code."""
    try:
        for number in _IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        # A signal to the group of the job, or a stop by its terminal, is not for the filter.
        os.setsid()
        os.dup2(source, 0)
        os.dup2(terminal, 1)
        # What else is open belongs to the job, whose readers wait for it to be closed.
        os.closerange(2, os.sysconf("SC_OPEN_MAX"))
        LogFilter(1).read_all(0)
    finally:
        os._exit(0)


class LogFilter:
    """Copies lines to a descriptor, except those of a log.

    Lines directly behind one of the log belong to it. Errors of the log and such
    lines are kept, and shown if the end comes without a farewell: then they may
    say why the process died.

    Args:
        terminal: int. The descriptor.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._kept: collections.deque[bytes] = collections.deque(maxlen=_NUM_KEPT_LINES)
        self._is_ending = False

    def read_all(self, source: int) -> None:
        """Filters all that a descriptor gives, to its end."""
        rest = b""
        while block := os.read(source, _READ_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            if len(rest) > _READ_BYTES:
                lines, rest = [*lines, rest], b""
            self._take(lines)
        self._take([rest] if rest else [])
        if not self._is_ending:
            self._show(list(self._kept))

    def _take(self, lines: list[bytes]) -> None:
        is_of_log = False
        shown: list[bytes] = []
        for line in lines:
            if line.endswith(_FAREWELL):
                line, self._is_ending, is_of_log = line.removesuffix(_FAREWELL), True, False
                if not line:
                    continue
            header = _HEADER.match(line)
            if header is None and not _PREAMBLE.match(line):
                (self._kept if is_of_log else shown).append(line)
                continue
            severity = header[1] or header[2] if header else b""
            is_of_log = severity != b"F"
            if severity == b"F":
                shown.append(line)
            elif severity == b"E":
                self._kept.append(line)
        self._show(shown)

    def _show(self, lines: list[bytes]) -> None:
        text = memoryview(b"".join(line + b"\n" for line in lines))
        # Where nobody can be told, the job goes on.
        with contextlib.suppress(OSError):
            while text:
                try:
                    text = text[os.write(self._terminal, text) :]
                except BlockingIOError:
                    select.select([], [self._terminal], [])
