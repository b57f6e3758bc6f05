"""TPU compiler in a process of its own.

The compiler reads its settings from the environment when it is imported, ends the process on
internal errors, and does not release the gigabytes that it takes. `TpuCompiler` starts this module
as such a process, see `main`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl_tf.errors import JobError
from txl_tf.imports import is_on_jax, require_extra
from txl_tf.tpu_compiler.compiled_program import CompiledProgram
from txl_tf.tpu_compiler.topologies import Topology

if TYPE_CHECKING:
    from txl_tf.config.experiment import ExperimentConfig
    from txl_tf.tpu_compiler.lowered_program import LoweredProgram

_MODULE, _JAX_MODULE = "txl_tf.tpu_compiler.compiler", "txl_tf.tpu_compiler.jax_program"
# Words of the line of an error output that names the cause.
_ERROR_WORDS = ("RESOURCE_EXHAUSTED", "Error: ")
# The compiler reads the kind of its machine here, so that it does not query the network. The values
# do not matter for named topologies.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Nothing here uses a device, so other processes do not matter.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
# The optimized program with its buffers, and a file that the compiler writes after it.
_DUMP, _AFTER_DUMP = "*.after_optimizations.hlo.pb", "*.after_optimizations_after_buffer*"


def require_tpu_compiler() -> None:
    """Raises UsageError if the compiler is not installed, without importing it."""
    require_extra(
        "jax-compile" if is_on_jax() else "tpu-compile",
        "jax",
        "libtpu",
        purpose="Compiling for a TPU",
        where=sys.prefix,
    )


class TpuCompiler:
    """TPU compiler for one topology.

    Memory, arithmetic and traffic are known when the program is optimized and its buffers are
    assigned. Then the process of the compiler is ended, because generating machine code takes most
    of the time. With `generates_code` the process runs to its end; kernels are compiled only then.
    """

    def __init__(self, topology: Topology, generates_code: bool = False) -> None:
        self.topology = topology
        self._generates_code = generates_code

    def compile(self, program: "LoweredProgram", name: str) -> CompiledProgram:
        """Compiles a program, even if it does not fit in memory; `name` stands in errors.

        Raises JobError if the compiler fails.
        """
        with tempfile.TemporaryDirectory(prefix="txl-compile-") as folder:
            place = Path(folder)
            (place / "module").write_bytes(program.to_stablehlo())
            (place / "attention").write_text(program.attention)
            return self._compiled(_MODULE, self._request(program.num_replicas), name, place)

    def compile_on_jax(self, experiment: "ExperimentConfig", name: str) -> CompiledProgram:
        """Compiles the training step of a run on JAX; `name` and errors are as in `compile`."""
        request = self._request(self.topology.num_replicas) | {"experiment": experiment.to_dict()}
        with tempfile.TemporaryDirectory(prefix="txl-compile-") as folder:
            return self._compiled(_JAX_MODULE, request, name, Path(folder))

    def _compiled(
        self, module: str, request: dict[str, Any], name: str, place: Path
    ) -> CompiledProgram:
        # This import loads TensorFlow.
        from txl_tf.tpu_compiler.costs import ProgramCosts

        # 1. Start the compiler in a process of its own.
        environment = _environment()
        if module == _JAX_MODULE:
            environment["KERAS_BACKEND"] = "jax"
        with (place / "errors").open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(place), json.dumps(request)],
                env=environment,
                stderr=errors,
            )
        # 2. Wait for its dump, which is complete when the next file exists, long before the end.
        try:
            while process.poll() is None and not any(place.glob(_AFTER_DUMP)):
                time.sleep(0.05)
            is_complete = not self._generates_code or process.wait() == 0
            if not (is_complete and any(place.glob(_AFTER_DUMP))):
                raise self._failed(process, name, place)
            costs = ProgramCosts(next(place.glob(_DUMP)).read_bytes())
        finally:
            process.kill()
            process.wait()
        # 3. Return the figures of the optimized program.
        memory = costs.memory()
        return CompiledProgram(
            needed_bytes=sum(memory.values()),
            limit_bytes=self.topology.hbm_bytes_per_replica,
            attention=(place / "attention").read_text(),
            **memory,
            flops=costs.flops(),
            hbm_bytes=costs.hbm_bytes(),
            all_reduce_bytes=costs.all_reduce_bytes(),
        )

    def _request(self, num_replicas: int) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if self.topology.chip.chip_config_name is not None:
            options["chip_config_name"] = self.topology.chip.chip_config_name
        if self.topology.num_chips == 1:
            options["chips_per_host_bounds"] = (1, 1, 1)
        return {
            "topology": {"topology_name": self.topology.name, **options},
            "num_replicas": num_replicas,
        }

    def _failed(self, process: subprocess.Popen, name: str, place: Path) -> JobError:
        lines = ((place / "errors").read_text().strip() or "no message").splitlines()
        what = f"The TPU compiler ended with exit code {process.wait()}: "
        # The last lines of the output are a banner of the compiler.
        causes = [line for line in lines if any(word in line for word in _ERROR_WORDS)]
        what += (causes or lines)[-1].strip()[:300]
        return JobError(what, where=f"{name} for {self.topology.name}")


def _environment() -> dict[str, str]:
    # The package must be importable from any working directory.
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def main(folder: str, request: str) -> None:
    """Compiles the file `module` of a folder, and writes the optimized program to the folder.

    `request` is JSON with the arguments of the topology and the number of replicas.
    """
    import numpy as np

    # JAX's public interface compiles only JAX functions; the exact version is pinned.
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jax.experimental import topologies
    from jaxlib.mlir.dialects import stablehlo

    values = json.loads(request)
    topology = topologies.get_topology_desc(platform="tpu", **values["topology"])
    devices: tuple[Any, ...] = tuple(topology.devices[: values["num_replicas"]])
    options = xla_client.CompileOptions()
    options.num_replicas = len(devices)
    options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(
        np.array([[device.id] for device in devices])
    )
    options.env_option_overrides = [("xla_dump_to", folder), ("xla_dump_hlo_as_proto", True)]
    module = stablehlo.deserialize_portable_artifact(
        mlir.make_ir_context(), Path(folder, "module").read_bytes()
    )
    devices[0].client.compile(module, _jax.DeviceList(devices), options)


if __name__ == "__main__":
    main(*sys.argv[1:])
