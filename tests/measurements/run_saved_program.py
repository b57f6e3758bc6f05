"""Trains by a program of `txl compile --save-program` on any device of JAX; prints the losses.

    python tests/measurements/run_saved_program.py DIR

Needs nothing but JAX and NumPy.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from jax._src.lib import _jax, xla_client
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class CompiledReplicas:
    """A compiled program, and the state of each replica on a device.

    `outputs` has for each output the number of the argument that it replaces, `None` for results;
    `state`, for each argument after the data, an array per replica.
    """

    def __init__(self, stablehlo, outputs, state, num_replicas):
        self._outputs = outputs
        self._devices = jax.devices()[:num_replicas]
        self._sharding = NamedSharding(Mesh(np.array(self._devices), ["replica"]), PartitionSpec())
        compile_options = xla_client.CompileOptions()
        compile_options.num_replicas = num_replicas
        compile_options.num_partitions = 1
        compile_options.device_assignment = xla_client.DeviceAssignment.create(
            np.array([[device.id] for device in self._devices])
        )
        compile_options.env_option_overrides = [
            # Without it, compilers leave out some of the program's roundings to bfloat16.
            ("xla_allow_excess_precision", False),
            # A GPU's compiler would time every product of float32 for minutes.
            ("xla_gpu_autotune_level", 0),
        ]
        self._executable = self._devices[0].client.compile_and_load(
            stablehlo, _jax.DeviceList(tuple(self._devices)), compile_options
        )
        self._state = list(map(self._spread, state))

    def __call__(self, data):
        """Runs the program once; `data` and results are lists of an array per replica."""
        outputs = self._executable.execute_sharded([*map(self._spread, data), *self._state])
        results = []
        by_output = outputs.disassemble_into_single_device_arrays()
        for argument, parts in zip(self._outputs, by_output, strict=True):
            if argument is None:
                results.append([np.asarray(part) for part in parts])
            else:
                self._state[argument - len(data)] = self._joined(parts)
        return results

    def state(self):
        """For each argument of state, an array per replica."""
        return [[np.asarray(part.data) for part in each.addressable_shards] for each in self._state]

    def _spread(self, parts):
        return self._joined(list(map(jax.device_put, parts, self._devices)))

    def _joined(self, parts):
        return jax.make_array_from_single_device_arrays(parts[0].shape, self._sharding, parts)


def prepare(num_replicas):
    """Must be called before JAX is used."""
    jax.config.update("jax_num_cpu_devices", num_replicas)
    # Without it, int64 would be cut off.
    jax.config.update("jax_enable_x64", True)


def losses_of(folder):
    """The losses of the saved steps."""
    description = json.loads((folder / "program.json").read_text())
    prepare(description["num_replicas"])
    with np.load(folder / "arguments.npz") as file:
        # NumPy does not know bfloat16.
        arrays = [
            file[f"arr_{number}"].view(jax.numpy.dtype(dtype))
            for number, dtype in enumerate(description["dtypes"])
        ]
    num_data, num_steps = description["num_data"], description["num_steps"]
    replicas = CompiledReplicas(
        (folder / "program.stablehlo").read_bytes(),
        description["outputs"],
        arrays[num_data:],
        description["num_replicas"],
    )
    for step in range(num_steps):
        replicas([array[step] for array in arrays[:num_data]])
    return replicas.state()[description["losses"] - num_data][0][0, :num_steps]


if __name__ == "__main__":
    found = list(map(float, losses_of(Path(sys.argv[1]))))
    print(json.dumps({"device": str(jax.devices()[0].device_kind), "losses": found}))
