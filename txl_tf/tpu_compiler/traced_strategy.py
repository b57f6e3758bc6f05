"""A `tf.distribute.TPUStrategy` that traces on a machine without a TPU."""

import collections

import numpy as np
import tensorflow as tf
from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata


def traced_tpu_strategy(
    num_replicas: int, *, packs_variables: bool = False
) -> tf.distribute.TPUStrategy:
    """Makes a strategy whose programs can be traced and lowered, and not run.

    The strategy is TensorFlow's own, and so is all that it traces. It is told
    of TPU devices that are not there, and its variables are on the CPU.
    Functions that are not for the replicas run as usual.

    Args:
        num_replicas: int. Replicas, all of them on one host.
        packs_variables: bool. Whether the parts that the replicas have of a
            variable share a handle, as they do on a TPU. It takes a logical
            CPU for each replica. Defaults to `False`: all parts are on the
            first logical CPU, with a handle each.

    Returns:
        A `tf.distribute.TPUStrategy`.
    """
    strategy = tf.distribute.TPUStrategy(_ResolverWithoutTpu(num_replicas))
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy._enable_packed_variable_in_eager_mode = packs_variables
    devices = cpus[:num_replicas] if packs_variables else [cpus[0]] * num_replicas
    extended = strategy.extended
    extended._tpu_devices = np.array([[device] for device in devices], dtype=object)
    extended._host_device = cpus[0]
    extended._device_input_worker_devices = collections.OrderedDict({cpus[0]: devices})
    extended._host_input_worker_devices = collections.OrderedDict(
        {cpus[0]: [cpus[0]] * num_replicas}
    )
    return strategy


class _ResolverWithoutTpu(tf.distribute.cluster_resolver.TPUClusterResolver):
    """Knows what a TPU would answer."""

    def __init__(self, num_replicas: int) -> None:
        # The original one looks for the TPU.
        self._num_replicas = num_replicas

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        """The devices of one host."""
        devices = [
            tf.config.LogicalDevice(f"/job:localhost/replica:0/task:0/device:TPU:{index}", "TPU")
            for index in range(self._num_replicas)
        ]
        return TPUSystemMetadata(
            num_cores=self._num_replicas,
            num_hosts=1,
            num_of_cores_per_host=self._num_replicas,
            topology=None,
            devices=devices,
        )

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """No servers."""
        return tf.train.ClusterSpec({})
