"""Lowering of training and evaluation steps to programs for the TPU compiler."""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2
from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

from txl_tf.distribution.tpu_chips import set_chip


@dataclasses.dataclass(frozen=True)
class LoweredProgram:
    """HLO program of one replica, before compilation.

    `hlo` is a serialized `HloModuleProto`. `attention` describes how the program attends, if known.
    Of an evaluation, `variable_bytes` count the variables of one replica and `num_tokens` the
    tokens that all replicas read at once, without padding.
    """

    hlo: bytes
    num_replicas: int
    variable_bytes: int = 0
    attention: str = ""
    num_tokens: int = 0

    def to_stablehlo(self) -> bytes:
        """Converts the program to the portable format of StableHLO, which later versions read."""
        from jax.extend import mlir
        from jaxlib.mlir.dialects import stablehlo

        module = mlir.hlo_to_stablehlo(self.hlo)
        return stablehlo.serialize_portable_artifact_str(module, stablehlo.get_current_version())

    def replaced_parameters(self) -> list[int | None]:
        """Returns the parameter that each output replaces, `None` for a result."""
        module = hlo_pb2.HloModuleProto.FromString(self.hlo)
        found = {
            tuple(entry.output_shape_index): entry.parameter_number
            for entry in module.input_output_alias.entries
        }
        # A program with one output has no tuple.
        num_outputs = len(module.host_program_shape.result.tuple_shapes) or 1
        return [found.get((index,), found.get(())) for index in range(num_outputs)]


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
    return LoweredProgram(_without_copies(hlo).SerializeToString(), num_replicas)


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
