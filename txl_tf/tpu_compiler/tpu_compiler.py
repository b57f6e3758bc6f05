"""Runs the TPU compiler in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from txl_tf.errors import JobError
from txl_tf.imports import require_extra
from txl_tf.tpu_compiler.compiled_program import CompiledProgram
from txl_tf.tpu_compiler.topology import Topology

if TYPE_CHECKING:
    # It imports TensorFlow, which must wait until the arguments are checked.
    from txl_tf.tpu_compiler.lowered_program import LoweredProgram

_MODULE = "txl_tf.tpu_compiler.compiler_process"
_PACKAGES = ("jax", "libtpu")
# The compiler wants to know the machine it runs on, and must not ask the network for it;
# what it is told does not matter to the topologies that are named.
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
    """Checks that the compiler is installed, without importing it.

    Raises:
        UsageError: If it is not.
    """
    require_extra("tpu-compile", *_PACKAGES, purpose="Compiling for a TPU", where=sys.prefix)


class TpuCompiler:
    """Compiles programs for one topology.

    Args:
        topology: `Topology`.
        text_folder: optional path of a folder that compiled programs are
            written to, as text.
    """

    def __init__(self, topology: Topology, text_folder: Path | None = None) -> None:
        self.topology = topology
        self._text_folder = text_folder

    def compile(self, program: "LoweredProgram", name: str) -> CompiledProgram:
        """Compiles a program.

        Args:
            program: `LoweredProgram`.
            name: str. What errors and files call it.

        Returns:
            A `CompiledProgram`, whether it fits the chip or not.

        Raises:
            JobError: If the compiler fails for another reason than memory.
        """
        with tempfile.TemporaryDirectory(prefix="txl-compile-") as folder:
            hlo, request, result = (Path(folder, each) for each in ("hlo", "request", "result"))
            hlo.write_bytes(program.hlo)
            text_file = None
            if self._text_folder is not None:
                text_file = str(self._text_folder.resolve() / f"{name}.hlo.txt")
            values = {
                "program": str(hlo),
                "topology": self.topology.name,
                "chip_config_name": self.topology.chip.chip_config_name,
                "num_replicas": program.num_replicas,
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
        if answer is None or answer["status"] == "failed":
            output = finished.stderr if answer is None else answer["message"]
            raise self._failed(name, output, finished.returncode)
        return CompiledProgram.from_result(answer, self.topology.hbm_bytes_per_replica)

    def _environment(self) -> dict[str, str]:
        # The package is found from wherever the job was started.
        here = str(Path(__file__).resolve().parents[2])
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}

    def _failed(self, name: str, output: str, exit_code: int) -> JobError:
        lines = [line for line in output.splitlines() if line.strip()] or ["no message"]
        return JobError(
            f"The TPU compiler ended with exit code {exit_code}: {lines[-1].strip()[:300]}",
            where=f"{name} for {self.topology.name}",
        )
