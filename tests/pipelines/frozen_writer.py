"""Trainers in threads that can be frozen before any of their operations.

A frozen process and a thread that waits are the same to a folder: what it has
open and locked stays open and locked. So many more orders of events can be
tried than with processes, and at exactly the moments that matter.
"""

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from unittest import mock

import tensorflow as tf

from pipelines.workdir import Workdir
from tests.pipelines.toy_run import toy_training, train
from txl_tf.errors import JobError
from txl_tf.storage.locks import DirectoryLock, LocalLock
from txl_tf.storage.store_lock import StoreLock
from txl_tf.training.checkpoint_store import BackgroundSaver, CheckpointStore

# A local writer may be frozen before each of these, also between a question and its answer's use.
_LOCAL_OPERATIONS = [
    (os, name)
    for name in ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "fstat")
] + [(os, "write"), (os, "ftruncate"), (shutil, "rmtree"), (fcntl, "flock")]
# Requests to a store cannot be made on a condition, so that the moment between the question and
# the request is not among these; the time in which arrays are uploaded is.
_STORE_OPERATIONS = [(StoreLock, "check"), (StoreLock, "_beat")]
# What the threads of a writer do beside its own, and when that one waits for them.
_COUNTED = [
    (CheckpointStore, "save", 1),
    (StoreLock, "_found_loss", 1),
    (BackgroundSaver, "wait", -1),
    (BackgroundSaver, "close", -1),
    (StoreLock, "release", -1),
]
_PATIENCE_SECONDS = 60.0
_threads: dict[int, "FrozenWriter"] = {}
_busy = threading.local()


class FrozenWriter:
    """A trainer in a thread of its own.

    Args:
        workdir: str. Folder of the run.
    """

    def __init__(self, workdir: str) -> None:
        self._workdir = workdir
        self._changed = threading.Condition()
        self._left: int | None = None
        self._is_frozen = False
        self._num_busy = 0
        self._thread = threading.Thread(target=self._train, daemon=True)
        self.exit_code: int | None = None
        self.error: BaseException | None = None
        self.num_operations = 0
        self.inode: int | None = None
        self.token: str | None = None
        self.num_locks = 0

    def run(self, num_operations: int | None = None) -> bool:
        """Lets it go on, for so many operations or to its end.

        Returns:
            Whether it has ended.
        """
        self.go_on(num_operations)
        with self._changed:
            assert self._changed.wait_for(
                lambda: self.has_ended or self._is_frozen, _PATIENCE_SECONDS
            )
            # Another thread of it goes on to its own next operation, or waits for this one.
            self._changed.wait_for(lambda: self.has_ended or self._num_busy == 0, 0.1)
        return self.has_ended

    def go_on(self, num_operations: int | None = None) -> None:
        """As `run`, without waiting."""
        with self._changed:
            self._left, self._is_frozen = num_operations, False
            self._changed.notify_all()
        if not self._thread.ident:
            self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Whether it is at its end, for better or worse."""
        return self.exit_code is not None

    def wait(self) -> int:
        """The exit code, once it has ended."""
        self._thread.join(_PATIENCE_SECONDS)
        assert self.exit_code is not None
        return self.exit_code

    def gate(self) -> None:
        """Comes before each of its operations."""
        is_busy = getattr(_busy, "value", False)
        with self._changed:
            self.num_operations += 1
            if self._left is not None and not self._is_frozen:
                if self._left == 0:
                    self._is_frozen = True
                    self._changed.notify_all()
                else:
                    self._left -= 1
            if self._is_frozen:
                self._num_busy -= is_busy
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: not self._is_frozen, _PATIENCE_SECONDS)
                self._num_busy += is_busy

    @contextlib.contextmanager
    def counted(self, change: int):
        """One more thread of it that does something, or one less as it waits for another."""
        self._count(change)
        _busy.value = change > 0
        try:
            yield
        finally:
            _busy.value = change < 0
            self._count(-change)

    def _count(self, change: int) -> None:
        with self._changed:
            self._num_busy += change
            self._changed.notify_all()

    def _train(self) -> None:
        _threads[threading.get_ident()] = self
        exit_code = 1
        try:
            with self.counted(1):
                train(self._workdir)
            exit_code = 0
        except JobError as error:
            self.error, exit_code = error, error.exit_code
        except BaseException as error:
            self.error = error
        finally:
            del _threads[threading.get_ident()]
            with self._changed:
                self.exit_code = exit_code
                self._changed.notify_all()


def _gated(function: Callable) -> Callable:
    def operation(*args, **kwargs):
        writer = _threads.get(threading.get_ident())
        if writer is not None:
            writer.gate()
        return function(*args, **kwargs)

    return operation


def _counted(function: Callable, change: int) -> Callable:
    def counted(*args, **kwargs):
        writer = _threads.get(threading.get_ident())
        is_busy = getattr(_busy, "value", False)
        if writer is None or is_busy == (change > 0):
            return function(*args, **kwargs)
        with writer.counted(change):
            return function(*args, **kwargs)

    return counted


def _started(start: Callable) -> Callable:
    """Threads that a writer starts are its own."""

    def start_thread(thread: threading.Thread) -> None:
        writer, run = _threads.get(threading.get_ident()), thread.run

        def run_as_writer() -> None:
            _threads[threading.get_ident()] = writer
            try:
                run()
            finally:
                del _threads[threading.get_ident()]

        if writer is not None:
            thread.run = run_as_writer
        start(thread)

    return start_thread


def _noted(acquire: Callable) -> Callable:
    def acquire_and_note(lock) -> None:
        acquire(lock)
        writer = _threads.get(threading.get_ident())
        if writer is not None:
            writer.num_locks += 1
            writer.token = lock.token

    return acquire_and_note


def _noted_folder(locked_file: Callable) -> Callable:
    def locked_file_and_note(lock: LocalLock, folder: int) -> int | None:
        writer = _threads.get(threading.get_ident())
        if writer is not None:
            writer.inode = os.stat(folder).st_ino
        return locked_file(lock, folder)

    return locked_file_and_note


@contextlib.contextmanager
def freezable_writers(is_store: bool):
    """Lets `FrozenWriter` work; locks are quick meanwhile."""

    def quick_lock(workdir: Workdir) -> DirectoryLock:
        return DirectoryLock(
            workdir.folder, heartbeat_seconds=0.02, stale_seconds=0.2, settle_seconds=0.02
        )

    operations = _STORE_OPERATIONS if is_store else _LOCAL_OPERATIONS
    with contextlib.ExitStack() as patches:
        patches.enter_context(toy_training())
        for owner, name in [*operations, (tf.raw_ops, "SaveV2")]:
            patches.enter_context(mock.patch.object(owner, name, _gated(getattr(owner, name))))
        for owner, name, change in _COUNTED:
            function = _counted(getattr(owner, name), change)
            patches.enter_context(mock.patch.object(owner, name, function))
        for lock in (LocalLock, StoreLock):
            patches.enter_context(mock.patch.object(lock, "acquire", _noted(lock.acquire)))
        locked_file = _noted_folder(LocalLock._locked_file)
        patches.enter_context(mock.patch.object(LocalLock, "_locked_file", locked_file))
        start = _started(threading.Thread.start)
        patches.enter_context(mock.patch.object(threading.Thread, "start", start))
        patches.enter_context(mock.patch.object(Workdir, "lock", quick_lock))
        patches.enter_context(mock.patch("txl_tf.storage.locks._PATIENCE_SECONDS", 0.05))
        patches.enter_context(mock.patch("txl_tf.storage.locks._POLL_SECONDS", 0.01))
        yield
