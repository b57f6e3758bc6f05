"""TPU compiler in a separate process, with its result and memory figures.

The compiler reads its settings from the environment before it is imported, ends the process
on internal errors, and takes gigabytes that it does not release. TensorFlow is not imported
here: the caller already has it in memory.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl_tf.errors import JobError
from txl_tf.imports import require_extra
from txl_tf.tpu_compiler.chips import Topology
from txl_tf.tpu_compiler.cost_analysis import CompiledText

if TYPE_CHECKING:
    from txl_tf.tpu_compiler.lowering import LoweredProgram


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """A program of one replica that fits its chip, or the memory it would need.

    Memory figures are in bytes of one device; for a program that does not fit,
    only `needed_bytes` and `limit_bytes` are not 0.
    """

    fits: bool
    """True if the program fits the chip."""
    needed_bytes: int
    """Memory that the program needs, the sum of the parts below."""
    limit_bytes: int
    """Memory that the compiler may use: the chip's without the system's."""
    argument_bytes: int = 0
    """Weights, optimizer state, memory of the rows and the batch."""
    output_bytes: int = 0
    """Results that do not reuse an argument's memory."""
    temporary_bytes: int = 0
    """Activations and other tensors that live only during the step."""
    code_bytes: int = 0
    """The program itself."""
    flops: float = 0.0
    """Floating-point operations; loops count by their known number of turns."""
    bytes_accessed: float = 0.0
    """Bytes that operations read and write, including on-chip memory."""
    hbm_bytes: int = 0
    """Bytes read from and written to the chip's high-bandwidth memory, with padding."""
    all_reduce_bytes: int = 0
    """Bytes that each replica contributes to all-reduces."""
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    """See `CompiledText.to_dict`."""


_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def compile_file(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles a program; returns the fields of `CompiledProgram`, or the message of a failure.

    The request has the file `program`, `topology`, optionally `chip_config_name`, `num_replicas`,
    `limit_bytes`, and optionally `text_file`, where the compiled program is written.
    """
    import jax

    options = {}
    if request["chip_config_name"] is not None:
        options["chip_config_name"] = request["chip_config_name"]
    if request["topology"].endswith((":1x1", ":1x1x1")):
        options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        executable = _compile(request, options)
    except jax.errors.JaxRuntimeError as error:
        return _explain(str(error), request["limit_bytes"])
    text = executable.hlo_modules()[0].to_string()
    if request["text_file"] is not None:
        Path(request["text_file"]).write_text(text)
    memory = executable.get_compiled_memory_stats()
    costs = executable.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    counts = CompiledText(text).to_dict()
    parts = {
        "argument_bytes": memory.argument_size_in_bytes,
        # Results that reuse an argument's memory need no further memory.
        "output_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }
    return {
        "fits": True,
        "needed_bytes": sum(parts.values()),
        "limit_bytes": request["limit_bytes"],
        **parts,
        "flops": costs["flops"] * (1.0 + counts.pop("repeated_share")),
        "bytes_accessed": costs["bytes accessed"] + counts.pop("repeated_bytes"),
        "hbm_bytes": counts.pop("hbm_bytes"),
        "all_reduce_bytes": counts.pop("all_reduce_bytes"),
        "details": counts,
    }


def _compile(request: dict[str, Any], options: dict[str, Any]) -> Any:
    import numpy as np

    # JAX's public interface compiles only JAX functions; the exact version is pinned.
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax, xla_client
    from jax.experimental import topologies
    from jaxlib.mlir.dialects import stablehlo

    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=request["topology"], **options
    )
    num_replicas = request["num_replicas"]
    devices: tuple[Any, ...] = tuple(topology.devices[:num_replicas])
    compile_options = xla_client.CompileOptions()
    compile_options.num_replicas = num_replicas
    compile_options.num_partitions = 1
    compile_options.device_assignment = xla_client.DeviceAssignment.create(
        np.array([[device.id] for device in devices])
    )
    program = Path(request["program"]).read_bytes()
    module = stablehlo.deserialize_portable_artifact(mlir.make_ir_context(), program)
    return devices[0].client.compile(module, _jax.DeviceList(devices), compile_options)


def _explain(message: str, limit_bytes: int) -> dict[str, Any]:
    if _OUT_OF_MEMORY not in message:
        return {"failure": message[:2000]}
    needed_bytes = 0
    if used := _USED.search(message):
        needed_bytes = int(float(used[1]) * _UNITS[used[2]])
        limit_bytes = int(float(used[3]) * _UNITS[used[4]])
    return {
        "fits": False,
        "needed_bytes": needed_bytes,
        "limit_bytes": limit_bytes,
        "details": {"message": message[:6000]},
    }


def hbm_at_once(
    training: CompiledProgram, evaluation: CompiledProgram | None, shared_bytes: int
) -> dict[str, Any]:
    """Adds up the memory of a run's two programs: bytes of each phase, limit, and if both fit.

    Weights, optimizer state and the memory of the rows stay in place during an evaluation, which
    reads the same weights, and the idle program stays loaded. `shared_bytes` are those arguments
    of the evaluation that are the trainer's variables.
    """
    other_code = 0 if evaluation is None else evaluation.code_bytes
    while_training = training.needed_bytes + other_code
    while_evaluating = 0
    if evaluation is not None:
        kept = training.argument_bytes + training.code_bytes
        while_evaluating = kept + max(evaluation.needed_bytes - shared_bytes, 0)
    fits = training.fits and (evaluation is None or evaluation.fits)
    return {
        "while_training_bytes": while_training,
        "while_evaluating_bytes": while_evaluating,
        "limit_bytes": training.limit_bytes,
        "fits": fits and max(while_training, while_evaluating) <= training.limit_bytes,
    }


_MODULE = "txl_tf.tpu_compiler.compiler"
# The compiler asks for the machine it runs on, and must not query the network; the values do not
# matter for named topologies.
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


def require_tpu_compiler() -> None:
    """Raises UsageError if the compiler is not installed, without importing it."""
    require_extra("tpu-compile", "jax", "libtpu", purpose="Compiling for a TPU", where=sys.prefix)


class TpuCompiler:
    """TPU compiler for one topology; it writes the text of compiled programs to `text_folder`."""

    def __init__(self, topology: Topology, text_folder: Path | None = None) -> None:
        self.topology = topology
        self._text_folder = text_folder

    def compile(self, program: "LoweredProgram", name: str) -> CompiledProgram:
        """Compiles a program, called `name` in errors and files; it need not fit the chip.

        Raises JobError if the compiler fails for another reason than memory.
        """
        with tempfile.TemporaryDirectory(prefix="txl-compile-") as folder:
            module, request, result = (Path(folder, each) for each in ("module", "in", "out"))
            module.write_bytes(program.to_stablehlo())
            text_file = None
            if self._text_folder is not None:
                text_file = str(self._text_folder.resolve() / f"{name}.hlo.txt")
            values = {
                "program": str(module),
                "topology": self.topology.name,
                "chip_config_name": self.topology.chip.chip_config_name,
                "num_replicas": program.num_replicas,
                "limit_bytes": self.topology.hbm_bytes_per_replica,
                "text_file": text_file,
            }
            request.write_text(json.dumps(values))
            finished = subprocess.run(
                [sys.executable, "-m", _MODULE, str(request), str(result)],
                env=self._environment(),
                capture_output=True,
                text=True,
                check=False,
            )
            answer = json.loads(result.read_text()) if result.is_file() else None
        if answer is None or "failure" in answer:
            output = finished.stderr if answer is None else answer["failure"]
            lines = [line for line in output.splitlines() if line.strip()] or ["no message"]
            raise JobError(
                f"The TPU compiler ended with exit code {finished.returncode}: "
                f"{lines[-1].strip()[:300]}",
                where=f"{name} for {self.topology.name}",
            )
        return CompiledProgram(**answer)

    def _environment(self) -> dict[str, str]:
        # The package must be importable from any working directory.
        here = str(Path(__file__).resolve().parents[2])
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}


def main(request_path: str, result_path: str) -> None:
    """Reads the request from one file and writes the result to another."""
    request = json.loads(Path(request_path).read_text())
    Path(result_path).write_text(json.dumps(compile_file(request)))


if __name__ == "__main__":
    main(*sys.argv[1:])
