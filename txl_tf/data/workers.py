"""Worker processes whose results are returned in the order of their inputs."""

import collections
import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from txl_tf.errors import StorageError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Items in flight per worker.
_ITEMS_PER_WORKER = 3


class OrderedWorkers(Generic[_Item, _Result]):
    """Processes that apply a picklable function to streams of items, in order.

    Few items are read ahead, so memory does not grow with their number. With one worker the work is
    done in this process. Otherwise workers are started on demand, by a server without threads,
    because a fork of a process with threads, such as TensorFlow's, can hang; a script that starts
    them needs `if __name__ == "__main__"`. Workers end with this process, even if it is killed.
    """

    def __init__(self, function: Callable[[_Item], _Result], num_workers: int) -> None:
        if num_workers < 1:
            raise ValueError(f"`num_workers` must be positive. Received: {num_workers}")
        self._function = function
        self._num_workers = num_workers
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self._num_workers > 1:
            context = multiprocessing.get_context("forkserver")
            # Imported once, and not again by each worker.
            context.set_forkserver_preload(["txl_tf.data.preparation"])
            self._executor = concurrent.futures.ProcessPoolExecutor(
                self._num_workers, context, _begin_work, (self._function,)
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def map(self, items: Iterable[_Item]) -> Iterator[_Result]:
        """Applies the function to items; results keep the order of the items.

        Raises StorageError if a worker has ended, else any exception of `items` or the function.
        """
        if self._executor is None:
            yield from map(self._function, items)
            return
        waiting: collections.deque[concurrent.futures.Future[_Result]] = collections.deque()
        try:
            for item in items:
                waiting.append(self._executor.submit(_work, item))
                if len(waiting) == self._num_workers * _ITEMS_PER_WORKER:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise StorageError(
                "A worker process has ended.",
                remedy="Start again, with fewer workers if memory is short.",
            ) from error


_function: Any = None


def _begin_work(function: Any) -> None:
    global _function
    _function = function
    # Ctrl-C is meant for the parent process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Accelerators are left to training.
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _work(item: Any) -> Any:
    return _function(item)
