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

    A fresh interpreter, because a fork of a process with threads, such as TensorFlow's, can hang.
    It ends when its parent ends, even if that is killed.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                # Accelerators are left to training.
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C is meant for the parent process, which then ends this one.
                process_group=0,
                env=environment,
            )
            self._connection = Connection(ours.detach())
        self.function: Any = None

    def send_function(self, function: Any) -> None:
        """Sets the function for all items sent later."""
        self._send(("function", function))
        self.function = function

    def send(self, item: Any) -> None:
        """Sends an item."""
        self._send(("item", item))

    def receive(self) -> Any:
        """Waits for the oldest outstanding result.

        Raises StorageError if the process has ended, else any exception of the function.
        """
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if kind == "error":
            raise value
        return value

    def close(self) -> None:
        """Kills the process: its results are no longer needed."""
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

# Items in flight per worker.
_ITEMS_PER_WORKER = 3


class OrderedWorkers:
    """Worker processes that apply functions to streams of items, in order.

    Item `i` goes to worker `i % num_workers`, and results are returned in the same order, whichever
    worker is fast. A thread reads the items, so memory does not grow with their number. Workers
    start on demand; with one worker the work is done in this process.
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
        # Ending the workers also releases the thread that waits to send.
        for worker in self._workers:
            worker.close()
        if self._feeder is not None:
            self._feeder.join()
        self._workers.clear()

    def map(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> Iterator[_Result]:
        """Applies a function to items; results keep the order of the items.

        Each worker has its own copy of the function, which may keep state. Raises StorageError if a
        worker has ended, else any exception of `items` or the function.
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
    """Thread that sends items to the workers in turn."""

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
        """Returns the worker with the next item; `None` after the last."""
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
        # Reading can take any time; the thread is a daemon and ends with the process.
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
            # Raised in the thread that waits for results.
            with contextlib.suppress(Exception):
                self._fed.put(error)

    def _worker(self, index: int) -> WorkerProcess:
        if index == len(self._workers):
            self._workers.append(WorkerProcess())
        return self._workers[index]
