"""Memory that requests share, counted before it is taken."""

import contextlib
import threading
import time
from collections.abc import Iterator

from txl_tf.serving.request_error import RequestError
from txl_tf.serving.status_code import StatusCode


class MemoryBudget:
    """Lends bytes of a total; threads may share it.

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
        """What is lent now."""
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
