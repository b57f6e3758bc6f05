"""Computes a stated number of requests at a time; a stated number of others waits."""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from txl_tf.serving.request_error import RequestError
from txl_tf.serving.status_code import StatusCode


class _Entry(NamedTuple):
    function: Callable[[], Any]
    future: Future
    deadline: float


class RequestQueue:
    """Runs functions on threads of its own, first come, first served.

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
