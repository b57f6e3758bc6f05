"""Choice of the devices on which a job runs."""

import contextlib
import functools
import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.distribution.server_address import (
    ANSWER_SECONDS,
    described,
    is_address,
    tpu_addresses,
    unreachable,
)
from txl_tf.distribution.time_limit import within
from txl_tf.errors import InputMissingError, UsageError, errors_as, first_line
from txl_tf.imports import is_on_jax, jax
from txl_tf.storage.strict_json import parse_json

_CLUSTER_VARIABLE = "TF_CONFIG"
# Jobs of a cluster that may train: parameter servers and evaluators are not supported.
_JOBS = ("chief", "worker")
ACCELERATOR_VARIABLE = "TPU_ACCELERATOR_TYPE"
"""Environment variable of Cloud TPU machines, with values such as `v5litepod-16`."""
# Generations with another name in accelerator types; `v6e-8` is a v6e.
_CHIP_OF_ACCELERATOR = {"v5litepod": "v5e"}
# Names of all hosts of a slice, on Google Kubernetes Engine and Cloud TPU.
_TPU_HOSTS = "TPU_WORKER_HOSTNAMES"
_CHIP_ATTRIBUTE = "_txl_tf_chip"
_GENERATION = re.compile(r"(v\d+[a-z]*)-\d+")
START_SECONDS = 600.0
"""Time limit for the start of a TPU that answers, and for workers to find each other."""


AnyStrategy: TypeAlias = tf.distribute.Strategy | MeshStrategy
"""Devices that train together, of TensorFlow or of JAX."""


def create_strategy(tpu: str | None = None, num_cpu_replicas: int = 1) -> AnyStrategy:
    """Creates the strategy for the requested and available devices, a mesh on JAX.

    `tpu` is `local`, a name, or `grpc://host:port`. Without a TPU, all GPUs are used, or the CPU if
    there are none. `num_cpu_replicas` above 1 asks for the CPU even beside GPUs; TensorFlow splits
    it into this number of logical devices before its first use. Several machines train together if
    the environment variable `TF_CONFIG` of each machine lists all of them; then this call waits for
    the others. Raises InputMissingError if a TPU or worker does not answer or start in time, and
    UsageError if `TF_CONFIG` is invalid, or used with a TPU or CPU replicas.
    """
    cluster = _cluster_of_several()
    if is_on_jax():
        return _mesh(tpu, num_cpu_replicas, cluster)
    if cluster is not None:
        if tpu is not None or num_cpu_replicas > 1:
            raise UsageError(
                "Several workers cannot use a TPU or CPU replicas.",
                where=f"{_CLUSTER_VARIABLE}={cluster[:200]}",
                remedy=f"Unset {_CLUSTER_VARIABLE}, or leave out --tpu and --cpu-replicas.",
            )
        return _several_workers(cluster)
    if tpu is not None:
        return _tpu_strategy(tpu)
    if num_cpu_replicas > 1:
        return _mirrored(_logical_cpus(num_cpu_replicas))
    # The default strategy places all variables on the first GPU and leaves the others idle.
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return _mirrored(tuple(gpu.name for gpu in gpus))
    return tf.distribute.get_strategy()


def _mesh(tpu: str | None, num_cpu_replicas: int, cluster: str | None) -> MeshStrategy:
    if tpu not in (None, "local"):
        raise UsageError(
            "JAX runs on the machine of the TPU, and connects to no other.",
            where=f"--tpu {tpu}",
            remedy="Run the command on every host of the TPU, with --tpu local.",
        )
    if num_cpu_replicas > 1:
        jax.config.update("jax_num_cpu_devices", num_cpu_replicas)
        return MeshStrategy(jax.devices("cpu")[:num_cpu_replicas])
    with errors_as(
        InputMissingError,
        RuntimeError,
        "JAX finds no device, or not the other processes",
        f"{_CLUSTER_VARIABLE}, JAX_PLATFORMS",
        "Check the addresses, and that no other process holds the devices.",
    ):
        with _kept_handler():
            if cluster is not None:
                _join_on_jax(parse_json(cluster))
            elif "," in os.environ.get(_TPU_HOSTS, ""):
                jax.distributed.initialize()  # finds the other hosts of the slice
        strategy = MeshStrategy()
    if tpu == "local" and strategy.kind != "TPU":
        raise tpu_not_found(tpu, RuntimeError(f"JAX runs on a {strategy.kind}"))
    return strategy


def _join_on_jax(values: dict[str, Any]) -> None:
    """Joins the processes that `TF_CONFIG` names; the first one coordinates."""
    cluster, task = values["cluster"], values["task"]
    places = [(job, index) for job in _JOBS for index in range(len(cluster.get(job, ())))]
    first_job, first_index = places[0]
    jax.distributed.initialize(
        coordinator_address=cluster[first_job][first_index],
        num_processes=len(places),
        process_id=places.index((task["type"], int(task["index"]))),
        initialization_timeout=int(START_SECONDS),
    )


def num_workers(strategy: AnyStrategy) -> int:
    """Returns the number of processes that train together.

    On TensorFlow one process trains on a TPU of several hosts, and on JAX a process for each host.
    """
    if isinstance(strategy, MeshStrategy):
        return strategy.num_workers
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    cluster = strategy.cluster_resolver.cluster_spec().as_dict()
    return sum(len(cluster.get(job, ())) for job in _JOBS)


def is_chief(strategy: AnyStrategy) -> bool:
    """True if this process writes the files of a run."""
    if isinstance(strategy, MeshStrategy):
        return strategy.is_chief
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return True
    # By TensorFlow's rule, the first worker is the chief if there is no job `chief`.
    resolver = strategy.cluster_resolver
    if "chief" in resolver.cluster_spec().as_dict():
        return resolver.task_type == "chief"
    return resolver.task_id == 0


def set_chip(strategy: tf.distribute.TPUStrategy, chip: str) -> None:
    """Sets the chip, such as `v5e`, of a strategy whose programs are only traced."""
    setattr(strategy.extended, _CHIP_ATTRIBUTE, chip)


def chip_of(strategy: AnyStrategy) -> str | None:
    """Returns the generation of the chips, such as `v5e`; `None` if unknown, or without TPUs.

    On TensorFlow, `set_chip` or the environment of a TPU machine names it.
    """
    if isinstance(strategy, MeshStrategy):
        return strategy.chip
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return None
    chip = getattr(strategy.extended, _CHIP_ATTRIBUTE, None)
    if chip is not None:
        return chip
    match = _GENERATION.fullmatch(os.environ.get(ACCELERATOR_VARIABLE, ""))
    return _CHIP_OF_ACCELERATOR.get(match[1], match[1]) if match else None


@functools.cache
def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """Returns the strategy for some devices, always the same one in a process.

    Strategies number their collective operations from the same start. So the operations of a second
    strategy would get the numbers of earlier operations, which have other shapes.
    """
    return tf.distribute.MirroredStrategy(devices)


@functools.cache
def _several_workers(cluster: str) -> tf.distribute.Strategy:
    """Returns the strategy of several workers, always the same one in a process.

    The strategy starts a server at the address of this worker.
    """
    with (
        errors_as(
            InputMissingError,
            (ValueError, RuntimeError, OSError, tf.errors.OpError),
            "This worker cannot join the others",
            f"{_CLUSTER_VARIABLE}={cluster[:200]}",
            "Check that each address is right, free, and reachable from the other machines.",
        ),
        _kept_handler(),
    ):
        return _joined(parse_json(cluster))


@contextlib.contextmanager
def _kept_handler() -> Iterator[None]:
    """Restores the handler of SIGTERM, which both backends replace silently."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _joined(values: dict[str, Any]) -> tf.distribute.Strategy:
    """Waits for the other workers, with a time limit.

    TensorFlow waits in C++ and blocks all other Python code. So the leader first checks that the
    others answer; they start their servers and then wait for the leader.
    """
    cluster, task = values["cluster"], values["task"]
    leader = "chief" if cluster.get("chief") else "worker"
    if task["type"] == leader and int(task["index"]) == 0:
        own = cluster[leader][0]
        others = [each for job in cluster.values() for each in job if each != own]
        silent = unreachable(others, START_SECONDS)
        if silent:
            raise TimeoutError(f"no answer from {described(silent)} in {START_SECONDS:g} seconds")
    jobs = [
        coordination_config_pb2.CoordinatedJob(name=job, num_tasks=len(addresses))
        for job, addresses in cluster.items()
    ]
    if context.context().coordination_service is None:
        # These are the strategy's own settings, but it sets no time limit.
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader=f"/job:{leader}/replica:0/task:0",
            cluster_register_timeout_in_ms=int(START_SECONDS * 1000),
            coordinated_jobs=jobs,
        )
    return tf.distribute.MultiWorkerMirroredStrategy()


def _cluster_of_several() -> str | None:
    """Returns `TF_CONFIG` if it names more than one worker."""
    text = os.environ.get(_CLUSTER_VARIABLE, "").strip()
    try:
        values = parse_json(text) if text else {}
        if values.get("cluster") is None:
            return None  # some launchers set the variable for a single machine too
        cluster, task = values["cluster"], values["task"]
        addresses = [address for job in _JOBS for address in cluster.get(job, ())]
        is_valid = (
            cluster.keys() <= {*_JOBS}
            and all(isinstance(each, list) and each for each in cluster.values())
            and all(map(is_address, addresses))
            and len({*addresses}) == len(addresses) > 0
            and len(cluster.get("chief", ())) <= 1
            and 0 <= int(task["index"]) < len(cluster[task["type"]])
        )
    except (ValueError, TypeError, LookupError, AttributeError):
        is_valid = False
    if not is_valid:
        raise UsageError(
            f"{_CLUSTER_VARIABLE} does not name the workers: `cluster` needs lists of `host:port` "
            "for `worker` or one `chief`, and `task` the type and index of this process.",
            where=f"{_CLUSTER_VARIABLE}={text[:200]}",
            remedy='Example: {"cluster": {"worker": ["a:2222", "b:2222"]}, '
            '"task": {"type": "worker", "index": 0}}; or unset the variable.',
        )
    return text if len(addresses) > 1 else None


def _tpu_strategy(tpu: str) -> tf.distribute.Strategy:
    # TensorFlow would wait forever, without naming the host.
    silent = unreachable(tpu_addresses(tpu), ANSWER_SECONDS)
    if silent:
        raise InputMissingError(
            f"No TPU answers within {ANSWER_SECONDS:g} seconds.",
            where=f"--tpu: {described(silent)}",
            remedy="Check that the address is right, the TPU runs, and its network is reachable.",
        )
    # There are two time limits, because a TPU is found in seconds, but may take minutes to start.
    # Any `Exception` is caught, because the client of the Cloud TPU API has its own error classes.
    try:
        resolver = within(ANSWER_SECONDS, lambda: _connected_resolver(tpu))
    except Exception as error:
        raise tpu_not_found(tpu, error) from error
    try:
        within(START_SECONDS, lambda: tf.tpu.experimental.initialize_tpu_system(resolver))
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, ImportError, tf.errors.OpError) as error:
        # A local TPU has no server, so only its start shows whether there is one.
        if tpu == "local":
            raise tpu_not_found(tpu, error) from error
        raise InputMissingError(
            f"The TPU was found but did not start: {first_line(error)}",
            where=f"--tpu {tpu}",
            remedy="Check that no other process uses the TPU, then run `txl doctor --tpu`.",
        ) from error


def _connected_resolver(tpu: str) -> tf.distribute.cluster_resolver.TPUClusterResolver:
    # A local TPU has no server to connect to.
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
    if tpu != "local":
        tf.config.experimental_connect_to_cluster(resolver)
    return resolver


def _logical_cpus(count: int) -> tuple[str, ...]:
    physical = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(physical) is None:
        tf.config.set_logical_device_configuration(
            physical, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
        )
    names = tuple(device.name for device in tf.config.list_logical_devices("CPU"))
    if len(names) < count:
        raise ValueError(
            f"`num_cpu_replicas` must be at most {len(names)}, the logical CPUs that TensorFlow "
            f"started with. Received: num_cpu_replicas={count}"
        )
    return names[:count]


def tpu_not_found(tpu: str, error: Exception) -> InputMissingError:
    """Creates the error for a TPU that cannot be connected to."""
    where = f"--tpu {tpu}"
    if tpu == "local" or tpu_addresses(tpu):
        return InputMissingError(
            f"No TPU answers: {first_line(error)}",
            where=where,
            remedy="On a TPU VM, install tensorflow-tpu and give `--tpu local`.",
        )
    return InputMissingError(
        f"No TPU answers to the name {tpu[:80]!r}: {first_line(error)}",
        where=where,
        remedy="Names need a VM of Google Cloud, and pip install google-api-python-client "
        "oauth2client. Check name, zone, rights and network: gcloud compute tpus tpu-vm describe "
        f"{tpu[:80]}; or give local on a TPU VM, else grpc://HOST:8470.",
    )
