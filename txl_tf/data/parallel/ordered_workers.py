"""Worker processes whose results come in the order of their work."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from txl_tf.data.parallel.worker_process import WorkerProcess

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# So many items a worker has, or waits to have taken from it.
_ITEMS_PER_WORKER = 3


class OrderedWorkers:
    """Applies functions to streams of items, on several cores.

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

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

        Yields:
            The results, in the order of the items.

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
        """The worker that has the next item; `None` after the last."""
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
