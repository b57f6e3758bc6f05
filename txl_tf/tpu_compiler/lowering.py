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

# The names of all other types contain their number of bits.
_BITS = {"pred": 8}


@dataclasses.dataclass(frozen=True)
class LoweredProgram:
    """HLO program of one replica, before compilation.

    `hlo` is a serialized `HloModuleProto`. `variable_bytes` count the variables of one replica
    without padding. `attention` describes how the program attends, if known. `num_tokens` are the
    tokens that all replicas of an evaluation read at once, without padding.
    """

    hlo: bytes
    num_replicas: int
    variable_bytes: int = 0
    attention: str = ""
    num_tokens: int = 0


def lower(
    function: Callable[..., object], specs: Sequence[tf.TensorSpec], num_replicas: int = 1
) -> LoweredProgram:
    """Lowers a function of tensors with known shapes to a program.

    Variables become inputs of the program. Assigned ones are also outputs, which reuse the memory
    of the inputs as in training.
    """
    compiled: Any = tf.function(function, jit_compile=True, autograph=False)
    # For an absent platform, even TensorFlow's TPU wheel does not lower variables.
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
    """Removes the copies that TensorFlow puts before outputs.

    The compiler inserts those that it needs, and its import does not support this operation.
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
    """Makes a strategy whose programs can be traced and lowered, but not run.

    The strategy and its traces are TensorFlow's own. Its TPU devices do not exist, its replicas
    are on one host, and its variables are on the CPU. Functions outside the replicas run as
    usual. Without `chip` features of some chips are left out. `packs_variables` gives the
    replicas' parts of a variable one handle, as on a TPU, which needs a logical CPU per replica;
    otherwise all parts are on the first one, each with a handle.
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
    """Cluster resolver that answers like a TPU."""

    def __init__(self, num_replicas: int) -> None:
        # The original constructor looks for the TPU.
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
        """Returns a specification without servers."""
        return tf.train.ClusterSpec({})
