"""Computes the requests of both interfaces within the server's limits."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from txl_tf.serving.free_memory import return_free_memory
from txl_tf.serving.loaded_version import LoadedVersion
from txl_tf.serving.memory_budget import MemoryBudget
from txl_tf.serving.request_queue import RequestQueue
from txl_tf.serving.server_limits import ServerLimits
from txl_tf.serving.version_watcher import VersionWatcher

_Answer = TypeVar("_Answer")

_LARGE_BYTES = 16 << 20


class RequestEngine:
    """What the interfaces share: versions, a queue and memory.

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
