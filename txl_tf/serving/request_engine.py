"""Requests at a server: their limits, memory and queue, which REST and gRPC share."""

import contextlib
import ctypes
import dataclasses
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from txl_tf.serving.errors import RequestError, StatusCode
from txl_tf.serving.model_versions import LoadedVersion, VersionWatcher

_LARGE_BYTES = 16 << 20
_Answer = TypeVar("_Answer")


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
    num_running: int = dataclasses.field(default_factory=lambda: max(4, 2 * (os.cpu_count() or 1)))
    """Requests that are computed at a time."""
    max_waiting: int = 1000
    """Requests that wait to be computed."""
    wait_seconds: float = 60.0
    """How long a request may wait to be computed."""
    memory_fraction: float = 0.5
    """The part of the memory, free at the start, that all requests together may take."""


class MemoryBudget:
    """Budget of bytes that requests borrow; threads may share it.

    Args:
        total_bytes: int. What can be lent at a time.
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
        if not self.take(num_bytes, wait_seconds):
            raise RequestError.of_busy_server("The memory for requests is lent to others.")
        try:
            yield
        finally:
            self.give_back(num_bytes)

    def give_back(self, num_bytes: int) -> None:
        """Returns bytes that `take` lent."""
        with self._returned:
            self._lent -= num_bytes
            self._returned.notify_all()

    def take(self, num_bytes: int, wait_seconds: float = 0.0) -> bool:
        """Lends bytes until `give_back`; returns whether there were so many in time."""
        deadline = time.monotonic() + wait_seconds
        with self._returned:
            while self._lent + num_bytes > self.total_bytes:
                rest = deadline - time.monotonic()
                if rest <= 0:
                    return False
                self._returned.wait(rest)
            self._lent += num_bytes
            return True


class _Entry(NamedTuple):
    function: Callable[[], Any]
    future: Future
    deadline: float


class RequestQueue:
    """Queue with its own threads: first come, first served.

    The threads are daemons: a computation that does not end keeps no process
    alive.

    Args:
        num_running: int. Functions that run at a time.
        max_waiting: int. Functions that may wait.
        wait_seconds: float. How long a function may wait.
    """

    def __init__(self, num_running: int, max_waiting: int, wait_seconds: float) -> None:
        self._entries: queue.Queue[_Entry | None] = queue.Queue()
        self._max_waiting = max_waiting
        self._wait_seconds = wait_seconds
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"request-{number}", daemon=True)
            for number in range(num_running)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], Any]) -> Future:
        """Runs a function as soon as it is its turn.

        Returns:
            `Future` of what it returns or raises. It raises RequestError with
            RESOURCE_EXHAUSTED where the function waited too long.

        Raises:
            RequestError: RESOURCE_EXHAUSTED if too many wait, UNAVAILABLE if the
                queue is closed.
        """
        if self._is_closed:
            raise RequestError(StatusCode.UNAVAILABLE, "The server is ending.")
        if self._entries.qsize() >= self._max_waiting:
            raise RequestError.of_busy_server(f"{self._max_waiting} requests are waiting.")
        future: Future = Future()
        self._entries.put(_Entry(function, future, time.monotonic() + self._wait_seconds))
        return future

    def close(self, timeout_seconds: float) -> bool:
        """Takes no more functions, and returns whether all that are there end in time."""
        self._is_closed = True
        for _ in self._threads:
            self._entries.put(None)
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (entry := self._entries.get()) is not None:
            _run(entry, self._wait_seconds)
            del entry  # not held while nothing is to do


def _run(entry: _Entry, wait_seconds: float) -> None:
    if not entry.future.set_running_or_notify_cancel():
        return  # whoever asked has left
    if time.monotonic() > entry.deadline:
        message = f"The request waited {wait_seconds:g} seconds."
        entry.future.set_exception(RequestError.of_busy_server(message))
        return
    try:
        answer = entry.function()
    except BaseException as error:  # belongs to whoever asked; the thread goes on
        entry.future.set_exception(error)
    else:
        entry.future.set_result(answer)


class RequestEngine:
    """Model versions, request queue and memory budget that REST and gRPC share.

    Args:
        versions: `VersionWatcher`.
        limits: `ServerLimits`.
        memory_bytes: int. What all requests together may take.

    Attributes:
        memory: `MemoryBudget` of `memory_bytes`.
    """

    def __init__(self, versions: VersionWatcher, limits: ServerLimits, memory_bytes: int) -> None:
        self.versions = versions
        self.limits = limits
        self.memory = MemoryBudget(memory_bytes)
        self._queue = RequestQueue(limits.num_running, limits.max_waiting, limits.wait_seconds)

    def submit(self, answer: Callable[[], _Answer]) -> Future:
        """Decodes and answers a request when it is its turn, see `RequestQueue.submit`."""
        return self._queue.submit(answer)

    def within_memory(
        self,
        loaded: LoadedVersion,
        signature_name: str,
        shapes: Mapping[str, Sequence[int]],
        compute: Callable[[], _Answer],
        *,
        copies: int = 1,
        text_bytes: int = 0,
    ) -> _Answer:
        """Computes when there is memory for it.

        Args:
            loaded: `LoadedVersion`.
            signature_name: str.
            shapes: dict of input name to its sizes.
            compute: function that makes the tensors and the answer.
            copies: int. How much larger the form of the interface is than tensors.
            text_bytes: int. The longest text of the request.

        Raises:
            RequestError: If there will never be so much, or not in time.
        """
        with self.lent(copies * loaded.memory_bytes(signature_name, shapes, text_bytes)):
            return compute()

    @contextlib.contextmanager
    def lent(self, num_bytes: int) -> Iterator[None]:
        """Lends memory for as long as the `with` block takes.

        Raises:
            RequestError: If there will never be so much, or not in time.
        """
        try:
            with self.memory.lend(num_bytes, wait_seconds=self.limits.wait_seconds):
                yield
        finally:
            if num_bytes > _LARGE_BYTES:
                _return_free_memory()

    def close(self, timeout_seconds: float) -> bool:
        """Takes no more requests, and returns whether all that are there end in time."""
        return self._queue.close(timeout_seconds)


def _return_free_memory() -> None:
    # glibc keeps what was freed, thread by thread; after one large request that is hundreds of
    # megabytes that no other request may ever use.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
