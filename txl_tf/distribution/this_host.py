"""The CPU of the machine that runs Python."""

import contextlib

import tensorflow as tf
from tensorflow.python.eager import context


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
