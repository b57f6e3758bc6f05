"""Remote hosts of a slice: their list, the watch over them, and the placement of operations."""

import contextlib
import dataclasses
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.python.eager import context, executor

from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.distribution.preemption import notice_path
from txl_tf.distribution.strategy import AnyStrategy
from txl_tf.distribution.time_limit import within

_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.5
_SILENCE_SECONDS = 120.0
# Executors are never freed, because TensorFlow may use one after its last answer has arrived.
_idle_executors: list[executor.Executor] = []


@dataclasses.dataclass(frozen=True)
class RemoteHost:
    """Host that runs TensorFlow's server at `address` (host:port); `device` is its CPU."""

    device: str
    address: str

    def is_leaving(self) -> bool:
        """True if the host was told to stop; its server then runs for some more seconds.

        Raises `tf.errors.OpError` if the host does not answer or no longer knows this process.
        """
        with at_once(), tf.device(self.device):
            return bool(tf.io.matching_files(tf.constant(self._notice)).numpy().size)

    def release(self) -> None:
        """Tells a leaving host that it may exit."""
        with at_once(), tf.device(self.device):
            tf.io.write_file(tf.constant(self._notice), tf.constant("released"))

    @property
    def _notice(self) -> str:
        return notice_path(self.address.rpartition(":")[2])

    def answers(self) -> bool:
        """True if the host answers within some seconds and knows this process."""
        # `within` asks in a thread, because a hanging host gives neither an answer nor an error.
        with contextlib.suppress(tf.errors.OpError, RuntimeError, TimeoutError):
            within(_ANSWER_SECONDS, self.is_leaving)
            return True
        return False


def remote_hosts(strategy: AnyStrategy) -> list[RemoteHost]:
    """Returns the hosts of a strategy's replicas, without the host of this process."""
    if context.get_server_def() is None:
        return []  # not connected to a cluster
    if isinstance(strategy, MeshStrategy | tf.distribute.MultiWorkerMirroredStrategy):
        return []  # each worker is a process, which trains on its own machine
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

    By default each host runs all operations in order, so they would wait for the end of a training
    loop.
    """
    try:
        own = _idle_executors.pop()
    except IndexError:
        own = executor.new_executor(enable_async=False, enable_streaming_enqueue=False)
    try:
        with context.executor_scope(own):
            yield
    finally:
        # Without this, the next user of the executor would get the same error.
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


@contextlib.contextmanager
def watched_hosts(
    strategy: AnyStrategy,
    on_leaving: Callable[[str], None] | None,
    on_lost: Callable[[list[str]], None],
) -> Iterator[None]:
    """Watches the remote hosts of a strategy while the block runs.

    `on_leaving` gets a reason, in any thread, when a host is told to stop; after the block such
    hosts are released. `on_lost` gets the addresses of lost hosts, in any thread, and must end the
    process: TensorFlow does not survive a lost host, raises for every dropped object and may abort.

    A broken connection ends the training loop with an error. But a silent host, as after a network
    failure, would block the loop forever, with the main thread inside TensorFlow. So a thread polls
    each host, and another thread ends the process if a host is silent for too long.
    """
    hosts = remote_hosts(strategy)
    if not hosts:
        yield
        return
    end, leaving = threading.Event(), []
    # Times of the requests without an answer yet, by their hosts.
    asked_at: dict[RemoteHost, float] = {}

    def poll(host: RemoteHost) -> None:
        while not end.is_set():
            asked_at[host] = time.monotonic()
            try:
                is_leaving = host.is_leaving()
            except (tf.errors.OpError, RuntimeError):
                is_leaving = None  # the training loop reports its own error
            asked_at.pop(host, None)
            if is_leaving and not end.is_set():
                leaving.append(host)
                if on_leaving is not None:
                    on_leaving(f"the host {host.address} is being taken away")
            if is_leaving is not False:
                return
            end.wait(_POLL_SECONDS)

    def watch_for_silence() -> None:
        while not end.wait(_POLL_SECONDS):
            # A copy, because the polling threads change the dict meanwhile.
            for host, since in list(asked_at.items()):
                if time.monotonic() - since > _SILENCE_SECONDS:
                    on_lost([host.address])

    targets: list[Callable[[], None]] = [functools.partial(poll, host) for host in hosts]
    # Daemon threads, because a request to a hanging host never returns.
    threads = [
        threading.Thread(target=target, name="host-watcher", daemon=True)
        for target in (*targets, watch_for_silence)
    ]
    for thread in threads:
        thread.start()
    with _quiet_when_dropped():
        try:
            yield
        except (tf.errors.OpError, RuntimeError):
            addresses = [host.address for host in hosts if not host.answers()]
            if not addresses:
                raise
            on_lost(addresses)
        finally:
            for host in leaving:
                with contextlib.suppress(tf.errors.OpError, RuntimeError):
                    host.release()
            end.set()
            for thread in threads:
                thread.join(timeout=2 * _POLL_SECONDS)


@contextlib.contextmanager
def _quiet_when_dropped() -> Iterator[None]:
    """Suppresses TensorFlow errors that are raised while objects are dropped."""
    before = sys.unraisablehook

    def ignore_operations(arguments: "sys.UnraisableHookArgs") -> None:
        if not isinstance(arguments.exc_value, tf.errors.OpError):
            before(arguments)

    sys.unraisablehook = ignore_operations
    try:
        yield
    finally:
        sys.unraisablehook = before
