"""Queue of requests, and the engine that computes them one after the other."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from txl_tf.serving.errors import RequestError, StatusCode
from txl_tf.serving.model_versions import LoadedVersion, VersionWatcher
from txl_tf.serving.request_limits import MemoryBudget, ServerLimits, return_free_memory


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

        Args:
            function: function without arguments.

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
        """Takes no more functions, and waits for those that are there.

        Args:
            timeout_seconds: float. The most time to wait.

        Returns:
            Whether all have ended.
        """
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


_Answer = TypeVar("_Answer")

_LARGE_BYTES = 16 << 20


class RequestEngine:
    """Model versions, request queue and memory budget that REST and gRPC share.

    Args:
        versions: `VersionWatcher`.
        limits: `ServerLimits`.
        memory_bytes: int. What all requests together may take.

    Attributes:
        versions: as given.
        limits: as given.
        memory: `MemoryBudget` of `memory_bytes`.
    """

    def __init__(self, versions: VersionWatcher, limits: ServerLimits, memory_bytes: int) -> None:
        self.versions = versions
        self.limits = limits
        self.memory = MemoryBudget(memory_bytes)
        self._queue = RequestQueue(limits.num_running, limits.max_waiting, limits.wait_seconds)

    def submit(self, answer: Callable[[], _Answer]) -> Future:
        """Answers a request when it is its turn.

        Args:
            answer: function that decodes the request and computes the answer.

        Returns:
            `Future` of the answer.

        Raises:
            RequestError: If too many wait.
        """
        return self._queue.submit(answer)

    def within_memory(
        self,
        loaded: LoadedVersion,
        signature_name: str,
        shapes: Mapping[str, Sequence[int]],
        compute: Callable[[], _Answer],
        *,
        copies: int = 1,
    ) -> _Answer:
        """Computes when there is memory for it.

        Args:
            loaded: `LoadedVersion`.
            signature_name: str.
            shapes: dict of input name to its sizes.
            compute: function that makes the tensors and the answer.
            copies: int. How much larger the form of the interface is than tensors.

        Returns:
            What `compute` returns.

        Raises:
            RequestError: If there will never be so much, or not in time.
        """
        with self.lent(copies * loaded.memory_bytes(signature_name, shapes)):
            return compute()

    @contextlib.contextmanager
    def lent(self, num_bytes: int) -> Iterator[None]:
        """Lends memory for as long as the `with` block takes.

        Args:
            num_bytes: int. What will be taken, roughly.

        Yields:
            None.

        Raises:
            RequestError: If there will never be so much, or not in time.
        """
        try:
            with self.memory.lend(num_bytes, wait_seconds=self.limits.wait_seconds):
                yield
        finally:
            if num_bytes > _LARGE_BYTES:
                return_free_memory()

    def close(self, timeout_seconds: float) -> bool:
        """Takes no more requests, and waits for those that are there.

        Args:
            timeout_seconds: float. The most time to wait.

        Returns:
            Whether all have ended.
        """
        return self._queue.close(timeout_seconds)
