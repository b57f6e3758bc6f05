"""Other hosts of a slice: their list, the watch on them, and where operations run."""

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
# Executors are never dropped: a thread of gRPC notes the end of an operation in its executor
# after the answer is there, when one that is dropped with the answer may be gone.
_idle_executors: list[executor.Executor] = []


@dataclasses.dataclass(frozen=True)
class RemoteHost:
    """A host that runs TensorFlow's server.

    Args:
        device: str. Its CPU, as TensorFlow names it.
        address: str. Host and port.
    """

    device: str
    address: str

    def is_leaving(self) -> bool:
        """Whether the host was told to go; it then serves for some seconds more.

        Raises:
            tf.errors.OpError: If the host does not answer, or does not know
                this process any more.
        """
        with at_once(), tf.device(self.device):
            found = tf.io.matching_files(tf.constant(self._notice))
            return bool(found.numpy().size)

    def release(self) -> None:
        """Tells a host that is leaving that it need not serve any more.

        Raises:
            tf.errors.OpError: If the host does not answer.
        """
        with at_once(), tf.device(self.device):
            tf.io.write_file(tf.constant(self._notice), tf.constant("released"))

    @property
    def _notice(self) -> str:
        return notice_path(self.address.rpartition(":")[2])

    def answers(self) -> bool:
        """Whether the host answers within some seconds, and knows this process."""
        # In a thread, because a host that hangs answers with nothing, not even an error.
        with contextlib.suppress(tf.errors.OpError, RuntimeError, TimeoutError):
            within(_ANSWER_SECONDS, self.is_leaving)
            return True
        return False


def remote_hosts(strategy: tf.distribute.Strategy) -> list[RemoteHost]:
    """Returns the hosts of a strategy's replicas other than this process."""
    if context.get_server_def() is None:
        return []  # this process is connected to nobody
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []  # each worker has a process of its own
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
    """Runs operations of this thread on remote hosts now.

    By default they are sent over one stream for each host, in order, so that
    they would wait for the end of a training loop that runs there.
    """
    try:
        own = _idle_executors.pop()
    except IndexError:
        own = executor.new_executor(enable_async=False, enable_streaming_enqueue=False)
    try:
        with context.executor_scope(own):
            yield
    finally:
        # It would raise once more for the next who takes it.
        own.clear_error()
        _idle_executors.append(own)


def this_host() -> contextlib.AbstractContextManager[None]:
    """Places operations on the CPU of this process.

    A process that is connected to other hosts has many CPUs, and `CPU:0` may be
    that of another one. What writes or reads a file of this machine must say so.
    """
    server = context.get_server_def()
    if server is None:
        return tf.device("CPU:0")
    return tf.device(f"/job:{server.job_name}/replica:0/task:{server.task_index}/device:CPU:0")


class HostWatcher:
    """Watch on remote hosts, with one polling thread per host.

    A host that was told to go says so, and there is time to save. A connection
    that breaks ends the training loop with an error, and needs no watcher. But
    a host may fall silent without that, as when its network is gone; then the
    loop would wait for ever.

    Args:
        hosts: list of `RemoteHost`.
        on_leaving: function of a host that was told to go. It is called once
            for each, in another thread than the caller's.
        on_silence: function of a host that has not answered for
            `silence_seconds`; called like that.
        poll_seconds: float. Time between two questions.
        silence_seconds: float. Silence after which a host counts as lost.
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
            # Daemons, because a question to a host that hangs is never answered.
            thread = threading.Thread(
                target=target, args=arguments, name="host-watcher", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        # A thread that asks a silent host is left alone after that.
        for thread in self._threads:
            thread.join(timeout=2 * self._poll_seconds)

    def _ask(self, host: RemoteHost) -> None:
        while not self._end.is_set():
            self._asked[host] = time.monotonic()
            try:
                is_leaving = host.is_leaving()
            except (tf.errors.OpError, RuntimeError):
                # The loop ends with an error of its own.
                self._asked.pop(host, None)
                return
            self._asked.pop(host, None)
            if is_leaving and not self._end.is_set():
                self._on_leaving(host)
                return
            self._end.wait(self._poll_seconds)

    def _listen(self) -> None:
        while not self._end.wait(self._poll_seconds):
            # A copy, since the asking threads change it meanwhile.
            for host, asked in list(self._asked.items()):
                if time.monotonic() - asked > self._silence_seconds:
                    self._asked.pop(host, None)
                    self._on_silence(host)
