"""Makes the three standard streams safe to use, whatever they were opened as."""

import contextlib
import os
import select
import sys
from typing import Any

_NAMES = ("stdin", "stdout", "stderr")


def prepare_streams() -> None:
    """Opens what is closed, and lets nothing that is printed be an error.

    A closed descriptor would be given to the next file that is opened, which
    whoever prints would then write into. A character that the terminal does not
    know is printed as its escape.
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
    """Writes out what was printed.

    Returns:
        The error of the standard output, if it took not all of it. What it did
        not take is forgotten.
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
    """Sends the rest to nowhere, or it would be tried again when the process ends."""
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
