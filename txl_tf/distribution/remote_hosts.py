"""Remote hosts of a slice: their list, a watcher, and the placement of operations."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import tensorflow as tf
from tensorflow.python.eager import context, executor

from txl_tf.distribution.preemption import notice_path
from txl_tf.distribution.server_address import within

_ANSWER_SECONDS = 5.0
# Executors are never freed: a gRPC thread notes the end of an operation in its executor after the
# answer has arrived, when a freed executor may be gone.
_idle_executors: list[executor.Executor] = []


@dataclasses.dataclass(frozen=True)
class RemoteHost:
    """Host that runs TensorFlow's server at `address` (host:port); `device` is its CPU."""

    device: str
    address: str

    def is_leaving(self) -> bool:
        """True if the host was told to stop; it then serves for some more seconds.

        Raises `tf.errors.OpError` if the host does not answer or no longer knows this process.
        """
        with at_once(), tf.device(self.device):
            found = tf.io.matching_files(tf.constant(self._notice))
            return bool(found.numpy().size)

    def release(self) -> None:
        """Tells a leaving host that it may exit."""
        with at_once(), tf.device(self.device):
            tf.io.write_file(tf.constant(self._notice), tf.constant("released"))

    @property
    def _notice(self) -> str:
        return notice_path(self.address.rpartition(":")[2])

    def answers(self) -> bool:
        """True if the host answers within some seconds and knows this process."""
        # In a thread, because a hanging host never answers, not even with an error.
        with contextlib.suppress(tf.errors.OpError, RuntimeError, TimeoutError):
            within(_ANSWER_SECONDS, self.is_leaving)
            return True
        return False


def remote_hosts(strategy: tf.distribute.Strategy) -> list[RemoteHost]:
    """Returns the hosts of a strategy's replicas other than this process."""
    if context.get_server_def() is None:
        return []  # not connected to a cluster
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []  # each worker is a process
    places = sorted(
        {
            (spec.job, spec.replica or 0, spec.task or 0)
            for spec in map(tf.DeviceSpec.from_string, strategy.extended.worker_devices)
            if spec.job not in (None, "localhost")
        }
    )
    addresses = {
        (job.name, number): address
        for job in context.get_server_def().cluster.job
        for number, address in job.tasks.items()
    }
    return [
        RemoteHost(
            f"/job:{job}/replica:{replica}/task:{task}/device:CPU:0",
            addresses.get((job, task), f"{job} {task}"),
        )
        for job, replica, task in places
    ]


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Runs remote operations of this thread without waiting for earlier ones.

    By default each host runs them in order, so they would wait for the end of a training loop.
    """
    try:
        own = _idle_executors.pop()
    except IndexError:
        own = executor.new_executor(enable_async=False, enable_streaming_enqueue=False)
    try:
        with context.executor_scope(own):
            yield
    finally:
        # Otherwise the next user of this executor would get the same error.
        own.clear_error()
        _idle_executors.append(own)


def this_host() -> contextlib.AbstractContextManager[None]:
    """Places operations on the CPU of this process.

    With connected hosts, `CPU:0` may be a remote CPU. Operations that read or write files of this
    machine need this scope.
    """
    server = context.get_server_def()
    if server is None:
        return tf.device("CPU:0")
    return tf.device(f"/job:{server.job_name}/replica:0/task:{server.task_index}/device:CPU:0")


class HostWatcher:
    """Watcher of remote hosts, with one polling thread per host.

    A broken connection ends the training loop with an error, but a silent host, as after a network
    failure, would block it forever. So `on_silence` is called after `silence_seconds` without an
    answer, and `on_leaving` once for each host that was told to stop, both in other threads.
    """

    def __init__(
        self,
        hosts: list[RemoteHost],
        on_leaving: Callable[[RemoteHost], None],
        on_silence: Callable[[RemoteHost], None],
        *,
        poll_seconds: float = 0.5,
        silence_seconds: float = 120.0,
    ) -> None:
        self._hosts = hosts
        self._on_leaving = on_leaving
        self._on_silence = on_silence
        self._poll_seconds = poll_seconds
        self._silence_seconds = silence_seconds
        self._end = threading.Event()
        self._asked: dict[RemoteHost, float] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        targets: list[tuple[Callable[..., None], tuple[RemoteHost, ...]]] = [
            (self._ask, (host,)) for host in self._hosts
        ]
        for target, arguments in [*targets, (self._listen, ())]:
            # Daemons, because a request to a hanging host never returns.
            thread = threading.Thread(
                target=target, args=arguments, name="host-watcher", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        # A thread that waits for a silent host is abandoned.
        for thread in self._threads:
            thread.join(timeout=2 * self._poll_seconds)

    def _ask(self, host: RemoteHost) -> None:
        while not self._end.is_set():
            self._asked[host] = time.monotonic()
            try:
                is_leaving = host.is_leaving()
            except (tf.errors.OpError, RuntimeError):
                # The training loop reports its own error.
                self._asked.pop(host, None)
                return
            self._asked.pop(host, None)
            if is_leaving and not self._end.is_set():
                self._on_leaving(host)
                return
            self._end.wait(self._poll_seconds)

    def _listen(self) -> None:
        while not self._end.wait(self._poll_seconds):
            # A copy, because the asking threads change the dict meanwhile.
            for host, asked in list(self._asked.items()):
                if time.monotonic() - asked > self._silence_seconds:
                    self._asked.pop(host, None)
                    self._on_silence(host)
