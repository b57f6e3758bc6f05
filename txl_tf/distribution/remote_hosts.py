"""Remote hosts of a slice: their loss, and the placement of operations."""

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.python.eager import context, executor

from txl_tf.distribution.server_address import unreachable

_ANSWER_SECONDS = 5.0
# Executors are never freed, because TensorFlow may use one after its last answer has arrived.
_idle_executors: list[executor.Executor] = []


def remote_addresses(strategy: tf.distribute.Strategy) -> list[str]:
    """Returns the `host:port` of the hosts of a strategy's replicas other than this process."""
    if context.get_server_def() is None:
        return []  # not connected to a cluster
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return []  # each worker is a process
    devices = map(tf.DeviceSpec.from_string, strategy.extended.worker_devices)
    hosts = {(device.job, device.task or 0) for device in devices}
    return sorted(
        address
        for job in context.get_server_def().cluster.job
        for number, address in job.tasks.items()
        if (job.name, number) in hosts
    )


@contextlib.contextmanager
def reported_loss(
    strategy: tf.distribute.Strategy, on_lost: Callable[[list[str]], None]
) -> Iterator[None]:
    """Calls `on_lost` with the addresses of hosts that a failed block has lost.

    It must end the process: TensorFlow does not survive a lost host, raises for every dropped
    object and may abort. A host that falls silent without closing its connection is not found.
    """
    addresses = remote_addresses(strategy)
    try:
        yield
    except (tf.errors.OpError, RuntimeError):
        lost = unreachable(addresses, _ANSWER_SECONDS) if addresses else {}
        if lost:
            on_lost(list(lost))
        raise


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
