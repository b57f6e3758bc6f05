"""A process that does the work of one core, and how it is talked to."""

import contextlib
import os
import socket
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from txl_tf.errors import JobError, StorageError

_MODULE = "txl_tf.data.parallel.worker_process"


class WorkerProcess:
    """A process that applies a function to what it is sent, and sends back.

    It is a fresh Python, not a copy of this one: a copy of a process that has
    threads, as TensorFlow starts them, can hang. It ends when this process
    does, however that ends.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                # Accelerators belong to those who train.
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Whoever interrupts means the process that started this one, which ends it.
                process_group=0,
                env=environment,
            )
            self._connection = Connection(ours.detach())
        self.function: Any = None

    def send_function(self, function: Any) -> None:
        """Sets the function for all that is sent from now on."""
        self._send(("function", function))
        self.function = function

    def send(self, item: Any) -> None:
        """Sends an item to be worked on."""
        self._send(("item", item))

    def receive(self) -> Any:
        """Waits for the result of the item sent first of those without one.

        Returns:
            What the function returned.

        Raises:
            StorageError: If the process is no more.
            BaseException: What the function raised.
        """
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if kind == "error":
            raise value
        return value

    def close(self) -> None:
        """Ends the process."""
        # Killed, because what it still does is of no use to anybody.
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
    """What the process that waits is told; its own traceback shows this one too."""
    text = str(error).strip().splitlines() or [""]
    failure = RuntimeError(f"A worker failed: {type(error).__name__}: {text[0][:200]}")
    failure.add_note(traceback.format_exc())
    return failure


if __name__ == "__main__":
    _work(Connection(int(sys.argv[1])))
