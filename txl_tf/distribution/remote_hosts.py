"""Other hosts of a slice: who they are, and operations kept on this one."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.eager import context, executor

from txl_tf.distribution.preemption import notice_path

_ANSWER_SECONDS = 5.0


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

        Returns:
            True once its server has noted it.

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
        answers: list[bool] = []

        def ask() -> None:
            with contextlib.suppress(tf.errors.OpError, RuntimeError):
                self.is_leaving()
                answers.append(True)

        # A thread, because a host that hangs answers with nothing, not even an error.
        thread = threading.Thread(target=ask, name="ask-host", daemon=True)
        thread.start()
        thread.join(_ANSWER_SECONDS)
        return bool(answers)


def remote_hosts(strategy: tf.distribute.Strategy) -> list[RemoteHost]:
    """Returns the hosts of a strategy's replicas that are not this process.

    Returns:
        One for each host; none where the process uses its own devices.
    """
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
    own = executor.new_executor(enable_async=False, enable_streaming_enqueue=False)
    try:
        with context.executor_scope(own):
            yield
    finally:
        # It would raise once more when it is dropped, where nobody can catch it.
        own.clear_error()


def this_host() -> contextlib.AbstractContextManager[None]:
    """Places operations on the CPU of this process.

    A process that is connected to other hosts has many CPUs, and `CPU:0` may be
    that of another one. What writes or reads a file of this machine must say so.

    Returns:
        A context manager.
    """
    server = context.get_server_def()
    if server is None:
        return tf.device("CPU:0")
    return tf.device(f"/job:{server.job_name}/replica:0/task:{server.task_index}/device:CPU:0")
