"""Limits of the server: clients, bytes and memory that requests may take."""

import contextlib
import ctypes
import dataclasses
import os
import threading
import time
from collections.abc import Iterator

from txl_tf.serving.errors import RequestError, StatusCode


def return_free_memory() -> None:
    """Makes the process as small as what it holds, where the C library can.

    glibc keeps what was freed, thread by thread; after one large request that is
    hundreds of megabytes that no other request may ever use.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class MemoryBudget:
    """Budget of bytes that requests borrow; threads may share it.

    Args:
        total_bytes: int. What can be lent at a time.

    Attributes:
        total_bytes: as given.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._lent = 0
        self._returned = threading.Condition()

    @property
    def lent_bytes(self) -> int:
        """Bytes that are lent at the moment."""
        return self._lent

    @contextlib.contextmanager
    def lend(self, num_bytes: int, *, wait_seconds: float) -> Iterator[None]:
        """Lends bytes for as long as the `with` block takes.

        Args:
            num_bytes: int.
            wait_seconds: float. How long to wait for others to return theirs.

        Yields:
            None.

        Raises:
            RequestError: INVALID_ARGUMENT if it is more than the total,
                RESOURCE_EXHAUSTED if others did not return enough in time.
        """
        if num_bytes > self.total_bytes:
            message = (
                f"The request would take about {num_bytes} bytes of memory; "
                f"all requests together may take {self.total_bytes}. Send fewer rows."
            )
            raise RequestError(StatusCode.INVALID_ARGUMENT, message)
        if not self._take(num_bytes, wait_seconds):
            raise RequestError.of_busy_server("The memory for requests is lent to others.")
        try:
            yield
        finally:
            self.give_back(num_bytes)

    def take(self, num_bytes: int) -> bool:
        """Lends bytes without waiting, until `give_back`.

        Args:
            num_bytes: int.

        Returns:
            Whether there were so many.
        """
        return self._take(num_bytes, 0.0)

    def give_back(self, num_bytes: int) -> None:
        """Returns bytes.

        Args:
            num_bytes: int. As they were taken.
        """
        with self._returned:
            self._lent -= num_bytes
            self._returned.notify_all()

    def _take(self, num_bytes: int, wait_seconds: float) -> bool:
        deadline = time.monotonic() + wait_seconds
        with self._returned:
            while self._lent + num_bytes > self.total_bytes:
                rest = deadline - time.monotonic()
                if rest <= 0:
                    return False
                self._returned.wait(rest)
            self._lent += num_bytes
            return True


def _default_num_running() -> int:
    return max(4, 2 * (os.cpu_count() or 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits of a server that no client can move.

    A request waits where `num_running` others run. One more than `max_waiting`
    is answered 503, or RESOURCE_EXHAUSTED over gRPC, and so is one that waited
    `wait_seconds`.
    """

    max_body_bytes: int = 256 << 20
    """The longest body of a request, and the longest message over gRPC."""
    max_bodies_bytes: int = 512 << 20
    """All bodies of REST that are being read or answered. Small ones do not count."""
    small_body_bytes: int = 64 << 10
    """Up to here a body is small."""
    max_json_values: int = 8_000_000
    """The most numbers, strings, lists and objects in one body."""
    max_json_containers: int = 500_000
    """The most lists and objects of them."""
    body_seconds: float = 30.0
    """The time in which a request must have arrived."""
    idle_seconds: float = 60.0
    """How long a connection may ask for nothing."""
    answer_seconds: float = 30.0
    """The time in which a client must have taken its answer."""
    max_connections: int = 512
    """Connections over REST. The next ones are answered 503 at once."""
    max_grpc_requests: int = 512
    """Requests over gRPC that are being read, waiting or running."""
    num_running: int = dataclasses.field(default_factory=_default_num_running)
    """Requests that are computed at a time."""
    max_waiting: int = 1000
    """Requests that wait to be computed."""
    wait_seconds: float = 60.0
    """How long a request may wait to be computed."""
    memory_fraction: float = 0.5
    """The part of the memory, free at the start, that all requests together may take."""
