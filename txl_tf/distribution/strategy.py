"""One place that decides on which devices a job runs."""

import functools

import tensorflow as tf

from txl_tf.errors import InputMissingError, UsageError


def create_strategy(tpu: str | None = None, num_cpu_replicas: int = 1) -> tf.distribute.Strategy:
    """Returns the strategy for what was asked for and what is there.

    Args:
        tpu: optional str. `local` for the TPU of this machine, a name, or an
            address `grpc://host:port`. Without it, all GPUs are used where
            there are any, else the CPU.
        num_cpu_replicas: int. More than 1 splits the CPU into as many logical
            devices, for tests and trials. Must be decided before TensorFlow
            has used the CPU.

    Returns:
        A `tf.distribute.TPUStrategy`, a `tf.distribute.MirroredStrategy`, or
        for a single device TensorFlow's default strategy.

    Raises:
        InputMissingError: If there is no TPU of that name.
        UsageError: If `tpu` and `num_cpu_replicas` are both given.
    """
    if tpu is not None:
        if num_cpu_replicas > 1:
            raise UsageError(
                "A run has either a TPU or CPU replicas.",
                where=f"--tpu {tpu} --cpu-replicas {num_cpu_replicas}",
                remedy="Leave one of the two out.",
            )
        return _tpu_strategy(tpu)
    if num_cpu_replicas > 1:
        return _mirrored(_logical_cpus(num_cpu_replicas))
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return _mirrored(tuple(gpu.name for gpu in gpus))
    return tf.distribute.get_strategy()


@functools.cache
def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """One strategy per process and devices.

    Strategies number their collective operations from the same start, so a
    second one would meet the shapes of the first.
    """
    return tf.distribute.MirroredStrategy(devices)


def _tpu_strategy(tpu: str) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        if tpu != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputMissingError(
            f"No TPU answers: {reason[0][:200]}",
            where=f"--tpu {tpu}",
            remedy="On a TPU VM use `--tpu local` with tensorflow-tpu installed.",
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _logical_cpus(count: int) -> tuple[str, ...]:
    physical = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(physical) is None:
        tf.config.set_logical_device_configuration(
            physical, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        )
    names = tuple(device.name for device in tf.config.list_logical_devices("CPU"))
    if len(names) < count:
        raise ValueError(
            "`num_cpu_replicas` must not exceed the number of logical CPUs once TensorFlow "
            f"runs, {len(names)}. Received: num_cpu_replicas={count}"
        )
    return names[:count]
