"""Worker processes whose results have the order of their inputs."""

import collections
import concurrent.futures
import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from txl_tf.errors import StorageError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_ITEMS_PER_WORKER = 3
"""Number of items per worker that are submitted but not yielded yet."""


@contextlib.contextmanager
def ordered_workers(
    function: Callable[[_Item], _Result], num_workers: int
) -> Iterator[Callable[[Iterable[_Item]], Iterator[_Result]]]:
    """Provides a `map` of a picklable function that runs in worker processes.

    The results have the order of the items. Only a few items are read ahead, so memory does not
    grow with their number. The `map` raises StorageError if a worker process has ended, and any
    exception of the items or the function.

    With one worker the function runs in this process. Otherwise a server process without threads
    starts workers when they are needed, because a fork of a process with threads can hang,
    and TensorFlow starts threads. A script with more than one worker needs
    `if __name__ == "__main__"`. Workers end when this process ends, even if it is killed.
    """
    if num_workers == 1:
        yield functools.partial(map, function)
        return
    context = multiprocessing.get_context("forkserver")
    # The server imports the module once, so that no worker imports it again.
    context.set_forkserver_preload(["txl_tf.data.preparation"])
    executor = concurrent.futures.ProcessPoolExecutor(
        num_workers, context, _begin_work, (function,)
    )
    try:
        yield functools.partial(_ordered_results, executor, num_workers * _ITEMS_PER_WORKER)
    finally:
        executor.shutdown(cancel_futures=True)


def _ordered_results(
    executor: concurrent.futures.Executor, max_waiting: int, items: Iterable[Any]
) -> Iterator[Any]:
    futures: collections.deque[concurrent.futures.Future[Any]] = collections.deque()
    try:
        for item in items:
            futures.append(executor.submit(_work, item))
            if len(futures) == max_waiting:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise StorageError(
            "A worker process ended before its work was done.",
            remedy="Start again, with fewer workers if memory is short.",
        ) from error


_function: Any = None


def _begin_work(function: Any) -> None:
    global _function
    _function = function
    # Ctrl-C ends the parent process, which then ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Workers leave the accelerators to training.
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _work(item: Any) -> Any:
    return _function(item)
