"""Worker processes whose results are returned in the order of their inputs."""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

from txl_tf.errors import JobError, StorageError

_MODULE = "txl_tf.data.workers"


class WorkerProcess:
    """Process that applies a function to each item that it receives.

    It is a fresh Python, not a copy of this one: a copy of a process that has
    threads, as TensorFlow starts them, can hang. It ends when this process
    does, however that ends.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                # Accelerators belong to those who train.
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Whoever interrupts means the process that started this one, which ends it.
                process_group=0,
                env=environment,
            )
            self._connection = Connection(ours.detach())
        self.function: Any = None

    def send_function(self, function: Any) -> None:
        """Sets the function for all that is sent from now on."""
        self._send(("function", function))
        self.function = function

    def send(self, item: Any) -> None:
        """Sends an item to be worked on."""
        self._send(("item", item))

    def receive(self) -> Any:
        """Waits for the result of the item sent first of those without one.

        Raises:
            StorageError: If the process is no more.
            BaseException: What the function raised.
        """
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if kind == "error":
            raise value
        return value

    def close(self) -> None:
        """Ends the process."""
        # Killed, because what it still does is of no use to anybody.
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._connection.close()

    def _send(self, message: tuple[str, Any]) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._ended() from error

    def _ended(self) -> StorageError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        return StorageError(
            f"A worker process has ended with code {self._process.returncode}.",
            remedy="Start again, with fewer workers if memory is short.",
        )


def _work(connection: Connection) -> None:
    function: Any = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            kind, value = connection.recv()
            if kind == "function":
                function = value
                continue
            try:
                answer = ("result", function(value))
            except JobError as error:
                answer = ("error", error)
            except MemoryError as error:
                answer = ("error", MemoryError(f"in a worker process: {error}"))
            except Exception as error:
                answer = ("error", _failure(error))
            connection.send(answer)


def _failure(error: Exception) -> RuntimeError:
    """Builds the error for the parent process, with the traceback of the worker."""
    text = str(error).strip().splitlines() or [""]
    failure = RuntimeError(f"A worker failed: {type(error).__name__}: {text[0][:200]}")
    failure.add_note(traceback.format_exc())
    return failure


if __name__ == "__main__":
    _work(Connection(int(sys.argv[1])))

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# So many items a worker has, or waits to have taken from it.
_ITEMS_PER_WORKER = 3


class OrderedWorkers:
    """Worker processes that apply functions to streams of items, in order.

    Item number `i` goes to worker `i % num_workers`, and results are taken in
    the same order, so that they do not depend on which worker is fast. Items
    are read by a thread as results are taken; memory does not grow with their
    number. A worker is started when there is work for it.

    Args:
        num_workers: int. Number of processes. With `1` there is none, and the
            work is done in this one.

    Raises:
        ValueError: If `num_workers` is not positive.
    """

    def __init__(self, num_workers: int) -> None:
        if num_workers < 1:
            raise ValueError(f"`num_workers` must be positive. Received: {num_workers}")
        self._num_workers = num_workers
        self._workers: list[WorkerProcess] = []
        self._feeder: _Feeder | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._feeder is not None:
            self._feeder.stop()
        # Without workers, whoever waits to send to one goes on.
        for worker in self._workers:
            worker.close()
        if self._feeder is not None:
            self._feeder.join()
        self._workers.clear()

    def map(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> Iterator[_Result]:
        """Applies a function to items.

        Args:
            function: function of an item that can be sent to a process. Every
                worker has one of its own, which may keep what it learns.
            items: iterable of items.

        Raises:
            StorageError: If a worker is no more.
            Exception: What `items` or the function raises.
        """
        if self._num_workers == 1:
            yield from map(function, items)
            return
        self._feeder = _Feeder(self._workers, self._num_workers, function, items)
        while (worker := self._feeder.next_worker()) is not None:
            result = worker.receive()
            self._feeder.allow_one_more()
            yield result
        self._feeder = None


class _Feeder:
    """A thread that gives items to workers, one after the other."""

    def __init__(
        self,
        workers: list[WorkerProcess],
        num_workers: int,
        function: Callable[[Any], Any],
        items: Iterable[Any],
    ) -> None:
        self._workers = workers
        self._num_workers = num_workers
        self._function = function
        self._items = items
        self._allowed = threading.Semaphore(num_workers * _ITEMS_PER_WORKER)
        self._fed: queue.SimpleQueue[WorkerProcess | BaseException | None] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._thread.start()

    def next_worker(self) -> WorkerProcess | None:
        """Returns the worker that has the next item; `None` after the last."""
        fed = self._fed.get()
        if isinstance(fed, BaseException):
            raise fed
        return fed

    def allow_one_more(self) -> None:
        self._allowed.release()

    def stop(self) -> None:
        self._stopped = True
        self._allowed.release()

    def join(self) -> None:
        # Reading can take any time, and a thread that ends with the process does no harm.
        self._thread.join(timeout=5)

    def _feed(self) -> None:
        try:
            for number, item in enumerate(self._items):
                self._allowed.acquire()
                if self._stopped:
                    return
                worker = self._worker(number % self._num_workers)
                if worker.function is not self._function:
                    worker.send_function(self._function)
                worker.send(item)
                self._fed.put(worker)
            self._fed.put(None)
        except BaseException as error:
            # Raised where the results are waited for.
            with contextlib.suppress(Exception):
                self._fed.put(error)

    def _worker(self, index: int) -> WorkerProcess:
        if index == len(self._workers):
            self._workers.append(WorkerProcess())
        return self._workers[index]
