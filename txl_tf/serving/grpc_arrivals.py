"""Ends gRPC requests whose message does not arrive in time."""

import contextlib
import itertools
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_STATUS = Path("/proc/self/statm")
_LOOK_SECONDS = 0.25
_SLOW_SECONDS = 1.0


class _Arrival(NamedTuple):
    start: float
    cancel: Callable[[], object]


class GrpcArrivals:
    """Watches requests from their first byte to the last one.

    gRPC counts neither the time nor the bytes of a message that is under way.
    Messages that take longer than a second are ended before their time where the
    memory of the process has grown too much since there were none.

    Args:
        body_seconds: float. The most time for a message.
        max_bodies_bytes: int. How much the memory may grow.
        lent_bytes: function that returns what is lent to requests that run.
    """

    def __init__(
        self, body_seconds: float, max_bodies_bytes: int, lent_bytes: Callable[[], int]
    ) -> None:
        self._body_seconds = body_seconds
        self._max_bodies_bytes = max_bodies_bytes
        self._lent_bytes = lent_bytes
        self._arrivals: dict[int, _Arrival] = {}
        self._numbers = itertools.count()
        self._before = 0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="arrivals", daemon=True)

    def start(self) -> None:
        """Watches from now on."""
        self._before = _resident_bytes()
        self._thread.start()

    def stop(self) -> None:
        """Watches no more."""
        self._is_stopped.set()

    @contextlib.contextmanager
    def arriving(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Watches one request for as long as the `with` block takes.

        Args:
            cancel: function that ends the request.

        Yields:
            None.
        """
        number = next(self._numbers)
        self._arrivals[number] = _Arrival(time.monotonic(), cancel)
        try:
            yield
        finally:
            del self._arrivals[number]

    def _watch(self) -> None:
        while not self._is_stopped.wait(_LOOK_SECONDS):
            now = time.monotonic()
            slow = [each for each in self._arrivals.copy().values() if _is_slow(each, now)]
            if not slow:
                self._before = _resident_bytes()
                continue
            growth = _resident_bytes() - self._before - self._lent_bytes()
            for each in slow:
                is_late = now - each.start > self._body_seconds
                if is_late or growth > self._max_bodies_bytes:
                    each.cancel()


def _is_slow(arrival: _Arrival, now: float) -> bool:
    return now - arrival.start > _SLOW_SECONDS


def _resident_bytes() -> int:
    try:
        return int(_STATUS.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0
