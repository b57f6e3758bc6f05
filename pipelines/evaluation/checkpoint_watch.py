"""Waits for the checkpoints of a run."""

import threading
import time
from collections.abc import Callable, Collection, Iterator

_POLL_SECONDS = 2.0


class CheckpointWatch:
    """Gives the steps of checkpoints as they appear, until the run is finished.

    Args:
        list_steps: function without arguments that returns the steps of the
            checkpoints that are there, oldest first.
        last_step: int. The step after which the run has no more.
        patience_seconds: optional float. How long to wait for the next one.
            Defaults to `None`: for ever.
        poll_seconds: float. Time between two looks. Defaults to `2.0`.
    """

    def __init__(
        self,
        list_steps: Callable[[], list[int]],
        last_step: int,
        patience_seconds: float | None = None,
        *,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._list_steps = list_steps
        self._last_step = last_step
        self._patience_seconds = patience_seconds
        self._poll_seconds = poll_seconds
        self._stop = threading.Event()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ends the waiting; may be called from any thread."""
        self._stop.set()

    def steps(self, done: Collection[int]) -> Iterator[int]:
        """The steps to evaluate.

        Args:
            done: steps that need no evaluation, to which the caller adds the
                ones it has been given.

        Yields:
            The oldest step that is there and not done. It ends after the last
            step of the run, when `stop` was called, and when no new checkpoint
            came for too long.
        """
        passed_over: set[int] = set()
        deadline = self._new_deadline()
        while not self.is_stopped:
            there = [step for step in self._list_steps() if step not in passed_over]
            step = next((step for step in there if step not in done), None)
            if step is not None:
                yield step
                # Whatever became of it, once is enough.
                passed_over.add(step)
                deadline = self._new_deadline()
                continue
            is_finished = self._last_step in done or self._last_step in passed_over
            if is_finished or time.monotonic() >= deadline:
                return
            self._stop.wait(min(self._poll_seconds, deadline - time.monotonic()))

    def _new_deadline(self) -> float:
        if self._patience_seconds is None:
            return float("inf")
        return time.monotonic() + self._patience_seconds
