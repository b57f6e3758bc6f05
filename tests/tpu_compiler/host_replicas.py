"""Executes the program of every replica on as many devices of a host, by JAX's client."""

import jax
import numpy as np
import tensorflow as tf
from jax._src.interpreters import mlir as interpreter
from jax._src.lib import _jax, xla_client
from jax._src.lib.mlir import ir
from jax.extend import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tensorflow.compiler.xla.service import hlo_pb2


class HostReplicas:
    """A compiled `ReplicaProgram` with the variables of every replica.

    Must be made before anything else of the process uses JAX, with as many CPU devices as
    replicas: `prepare`.
    """

    def __init__(self, program, options=None):
        self._program = program
        lowered = program.lower()
        module = hlo_pb2.HloModuleProto.FromString(lowered.hlo)
        self._aliases = {
            tuple(entry.output_shape_index): entry.parameter_number
            for entry in module.input_output_alias.entries
        }
        self._devices = jax.devices("cpu")[: program.num_replicas]
        self._sharding = NamedSharding(Mesh(np.array(self._devices), ["replica"]), PartitionSpec())
        compile_options = xla_client.CompileOptions()
        compile_options.num_replicas = program.num_replicas
        compile_options.num_partitions = 1
        compile_options.device_assignment = xla_client.DeviceAssignment.create(
            np.array([[device.id] for device in self._devices])
        )
        compile_options.env_option_overrides = list((options or {}).items())
        module = ir.Module.parse(mlir.hlo_to_stablehlo(lowered.hlo), interpreter.make_ir_context())
        self._executable = self._devices[0].client.compile_and_load(
            module, _jax.DeviceList(tuple(self._devices)), compile_options
        )
        self._state = [self._spread(map(read, each)) for each in program.variables.values()]

    def __call__(self, *arguments):
        """Runs the program once.

        Args:
            *arguments: an array per replica for each argument of `strategy.run`, flattened.

        Returns:
            For each result a list of arrays, one per replica.
        """
        numbers = np.arange(self._program.num_replicas, dtype=np.int32)
        by_place = [list(numbers), *arguments]
        data = [self._spread(by_place[place]) for place in self._program.places]
        outputs = self._executable.execute_sharded([*data, *self._state])
        results = []
        for index, parts in enumerate(outputs.disassemble_into_single_device_arrays()):
            # A program with one result has no tuple.
            parameter = self._aliases.get((index,), self._aliases.get(()))
            if parameter is None:
                results.append([np.asarray(part) for part in parts])
            else:
                self._state[parameter - len(data)] = self._joined(parts)
        return results

    def write_back(self):
        """Gives TensorFlow's variables the values that they have here."""
        for handles, array in zip(self._program.variables.values(), self._state, strict=True):
            for handle, part in zip(handles, array.addressable_shards, strict=True):
                tf.raw_ops.AssignVariableOp(
                    resource=handle, value=tf.constant(np.asarray(part.data), dtype_of(handle))
                )

    def _spread(self, parts):
        parts = list(parts)
        assert len(parts) == len(self._devices)
        return self._joined(
            [
                jax.device_put(part, device)
                for part, device in zip(parts, self._devices, strict=True)
            ]
        )

    def _joined(self, parts):
        return jax.make_array_from_single_device_arrays(parts[0].shape, self._sharding, parts)


def prepare(num_replicas):
    """Must be called before JAX is used."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num_replicas)
    # Without it, int64 would be cut off.
    jax.config.update("jax_enable_x64", True)


def dtype_of(handle):
    return tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)


def read(handle):
    """The value of a variable, by its handle."""
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype_of(handle)).numpy()
