"""Saving of checkpoints in the background."""

import queue
import threading
from types import TracebackType
from typing import Any, Self

import numpy as np

from txl_tf.training.checkpoint_store import CheckpointStore


class BackgroundSaver:
    """Saver of one checkpoint at a time, in a thread.

    A save that fails is reported by the next call, and is never listed by the
    store. Leaving the `with` block waits for the save in flight; where an
    exception is on its way, a failed save does not hide it. If the interpreter
    exits without that, the save in flight is lost as if the process had been
    killed, and the checkpoints before it are whole.

    Args:
        store: `CheckpointStore` to save with.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._work: queue.Queue[tuple[Any, ...] | None] = queue.Queue()
        self._error: BaseException | None = None
        self._saved_step: int | None = None
        # A daemon, because the interpreter waits for all others before it exits.
        self._thread = threading.Thread(target=self._run, name="checkpoint-saver", daemon=True)
        self._is_closed = False
        self._thread.start()

    def submit(
        self, step: int, arrays: dict[str, np.ndarray], ledger: dict[str, Any] | None = None
    ) -> None:
        """Hands a checkpoint over and returns, once the one before it is saved.

        Args:
            step: int. Steps done.
            arrays: dict of name to array. They must not be changed any more.
            ledger: optional dict, see `CheckpointStore.save`.

        Raises:
            StorageError: If the save before it failed; so do all the errors of
                `CheckpointStore.save`.
            ValueError: If it is closed.
        """
        if self._is_closed:
            raise ValueError(f"A closed saver cannot save. Received: step={step}")
        self.wait()
        self._work.put((step, arrays, ledger))

    def wait(self) -> None:
        """Blocks until all that was submitted is durable.

        Raises:
            StorageError: If a save failed; so do all the errors of
                `CheckpointStore.save`. Each is raised once.
        """
        self._work.join()
        self.check()

    @property
    def is_idle(self) -> bool:
        """Whether no save is in flight, nor has one failed that was not reported yet."""
        return self._work.unfinished_tasks == 0 and self._error is None

    @property
    def saved_step(self) -> int | None:
        """Steps done at the last checkpoint that it has saved; `None` before the first."""
        return self._saved_step

    def check(self) -> None:
        """Reports a save that has failed by now, without waiting for one in flight.

        Raises:
            StorageError: If a save failed, see `wait`.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits and ends the thread; a second call does nothing.

        Raises:
            StorageError: If the last save failed, see `wait`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.wait()
        finally:
            self._work.put(None)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as error:
            if exception is None:
                raise
            exception.add_note(f"The last checkpoint was not saved either: {error}")

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                self._store.save(*work)
                self._saved_step = work[0]
            except BaseException as error:
                self._error = error
            finally:
                # The arrays are freed now and not when the next ones come.
                del work
                self._work.task_done()
