"""Saving of checkpoints in a thread, while training continues."""

import contextlib
import threading
from typing import Any

import numpy as np

from txl_tf.training.checkpoints.checkpoint_store import CheckpointStore


class BackgroundSaver(contextlib.AbstractContextManager):
    """Saver of one checkpoint at a time, in a thread.

    The next call of `submit`, `wait` or `check` raises the error of a failed save, which leaves no
    checkpoint. The end of the `with` block waits for the save in flight; a failed save does not
    hide another exception.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(
        self, step: int, arrays: dict[str, np.ndarray], ledger: dict[str, Any] | None = None
    ) -> None:
        """Waits for the previous save, and begins to save a checkpoint.

        `arrays` must not change afterwards. Raises the error of the previous save.
        """
        self.wait()
        # A daemon thread, because the interpreter would wait for any other before it exits. A save
        # in flight is then lost, as if the process had been killed.
        self._thread = threading.Thread(
            target=self._save, args=(step, arrays, ledger), name="checkpoint-saver", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Waits until all submitted checkpoints are saved; raises the error of a failed save."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    @property
    def is_idle(self) -> bool:
        """True if no save is in flight and no failure waits to be reported."""
        is_saving = self._thread is not None and self._thread.is_alive()
        return not is_saving and self._error is None

    def check(self) -> None:
        """Raises the error of a failed save, once; does not wait for a save in flight."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __exit__(self, kind: object, exception: BaseException | None, traceback: object) -> None:
        try:
            self.wait()
        except Exception as error:
            if exception is None:
                raise
            exception.add_note(f"The last checkpoint was not saved either: {error}")

    def _save(
        self, step: int, arrays: dict[str, np.ndarray], ledger: dict[str, Any] | None
    ) -> None:
        try:
            self._store.save(step, arrays, ledger)
        except BaseException as error:
            self._error = error
