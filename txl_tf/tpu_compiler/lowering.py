"""Lowering of training and evaluation steps to programs for the TPU compiler."""

import collections
import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

from txl_tf.distribution.tpu_chips import set_chip

# The names of all other types say how many bits they have.
_BITS = {"pred": 8}


@dataclasses.dataclass(frozen=True)
class LoweredProgram:
    """HLO program of one replica, before compilation.

    Attributes:
        hlo: bytes. A serialized `HloModuleProto`.
        num_replicas: int. Replicas that run it together.
        variable_bytes: int. Bytes of the variables of one replica, without
            padding.
        attention: str. How the program attends; empty where nobody says it.
        num_tokens: int. Tokens that all replicas of an evaluation read at once, padding
            left out.
    """

    hlo: bytes
    num_replicas: int
    variable_bytes: int = 0
    attention: str = ""
    num_tokens: int = 0


def lower(
    function: Callable[..., object], specs: Sequence[tf.TensorSpec], num_replicas: int = 1
) -> LoweredProgram:
    """Turns a function into a program.

    Variables become inputs of the program, and those that the function
    assigns also outputs, which take the memory of the inputs as they do in
    training.

    Args:
        function: function of tensors.
        specs: a `tf.TensorSpec` with a known shape for every tensor.
        num_replicas: int.
    """
    compiled: Any = tf.function(function, jit_compile=True, autograph=False)
    # For a platform that is not there, even TensorFlow's TPU wheel lowers no variables.
    hlo = compiled.experimental_get_compiler_ir(*specs)(stage="hlo_serialized", platform_name="CPU")
    module = _without_copies(hlo)
    parameters = module.host_program_shape.parameters[len(specs) :]
    return LoweredProgram(
        module.SerializeToString(), num_replicas, sum(map(_num_bytes, parameters))
    )


def _num_bytes(shape: xla_data_pb2.ShapeProto) -> int:
    name = xla_data_pb2.PrimitiveType.Name(shape.element_type).lower()
    bits = _BITS.get(name) or int(re.sub(r"\D*(\d+).*", r"\1", name))
    return math.prod(shape.dimensions) * bits // 8


def _without_copies(hlo: bytes) -> hlo_pb2.HloModuleProto:
    """Takes out the copies that TensorFlow puts before outputs.

    They change nothing, the compiler adds those that it needs, and the way
    into it has no such operation.
    """
    module = hlo_pb2.HloModuleProto.FromString(hlo)
    for computation in module.computations:
        source = {
            instruction.id: instruction.operand_ids[0]
            for instruction in computation.instructions
            if instruction.opcode == "copy"
        }

        def original(number: int, source: dict[int, int] = source) -> int:
            while number in source:
                number = source[number]
            return number

        kept = [each for each in computation.instructions if each.id not in source]
        for instruction in kept:
            instruction.operand_ids[:] = [original(each) for each in instruction.operand_ids]
        computation.root_id = original(computation.root_id)
        kept = [hlo_pb2.HloInstructionProto.FromString(each.SerializeToString()) for each in kept]
        del computation.instructions[:]
        computation.instructions.extend(kept)
    return module


def traced_tpu_strategy(
    num_replicas: int, *, chip: str | None = None, packs_variables: bool = False
) -> tf.distribute.TPUStrategy:
    """Makes a strategy whose programs can be traced and lowered, and not run.

    The strategy is TensorFlow's own, and so is all that it traces. It is told
    of TPU devices that are not there, and its variables are on the CPU.
    Functions that are not for the replicas run as usual.

    Args:
        num_replicas: int. Replicas, all of them on one host.
        chip: optional str. Generation of the chips, such as `v5e`; without it, what only some
            chips can is left out.
        packs_variables: bool. Whether the parts that the replicas have of a
            variable share a handle, as they do on a TPU. It takes a logical
            CPU for each replica. Defaults to `False`: all parts are on the
            first logical CPU, with a handle each.
    """
    strategy = tf.distribute.TPUStrategy(_ResolverWithoutTpu(num_replicas))
    set_chip(strategy, chip or "")
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
    """Cluster resolver that answers as a TPU would."""

    def __init__(self, num_replicas: int) -> None:
        # The original one looks for the TPU.
        self._num_replicas = num_replicas

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        """Returns the devices of one host."""
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
