"""Compiles one program in a process of its own: `python -m txl_tf.tpu_compiler.compiler_process`.

The compiler reads its settings from the environment before it is imported,
ends the process when it meets an error of its own, and takes gigabytes that it
does not give back. TensorFlow is not imported here: the caller has read all of
its memory's worth already.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from txl_tf.tpu_compiler.compiled_text import CompiledText

_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"
_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def compile_file(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles a program.

    Args:
        request: dict with the file `program`, `topology`, optional
            `chip_config_name`, `num_replicas`, and optional `text_file`,
            where the compiled program is to be written.

    Returns:
        Dict with `status`, which is `compiled`, `out_of_memory` or `failed`,
        and what is known of the program.
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
        return _explain(str(error))
    text = executable.hlo_modules()[0].to_string()
    if request["text_file"] is not None:
        Path(request["text_file"]).write_text(text)
    memory = executable.get_compiled_memory_stats()
    costs = executable.cost_analysis()
    costs = costs[0] if isinstance(costs, list) else costs
    return {
        "status": "compiled",
        "flops": costs["flops"],
        "bytes_accessed": costs["bytes accessed"],
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "shared_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        **CompiledText(text).to_dict(),
    }


def _compile(request: dict[str, Any], options: dict[str, Any]) -> Any:
    import numpy as np

    # The public interface of JAX compiles functions of JAX only; the exact version is pinned.
    from jax._src.interpreters import mlir as interpreter
    from jax._src.lib import _jax, xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies
    from jax.extend import mlir

    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=request["topology"], **options
    )
    num_replicas = request["num_replicas"]
    devices = tuple(topology.devices[:num_replicas])
    compile_options = xla_client.CompileOptions()
    compile_options.num_replicas = num_replicas
    compile_options.num_partitions = 1
    compile_options.device_assignment = xla_client.DeviceAssignment.create(
        np.array([[device.id] for device in devices])
    )
    hlo = Path(request["program"]).read_bytes()
    module = ir.Module.parse(mlir.hlo_to_stablehlo(hlo), interpreter.make_ir_context())
    return devices[0].client.compile(module, _jax.DeviceList(devices), compile_options)


def _explain(message: str) -> dict[str, Any]:
    if _OUT_OF_MEMORY not in message:
        return {"status": "failed", "message": message[:2000]}
    used = _USED.search(message)
    result: dict[str, Any] = {"status": "out_of_memory", "message": message[:6000]}
    if used is not None:
        result["needed_bytes"] = int(float(used[1]) * _UNITS[used[2]])
        result["limit_bytes"] = int(float(used[3]) * _UNITS[used[4]])
    return result


def main(arguments: list[str]) -> None:
    """Reads the request from one file and writes the result to another.

    Args:
        arguments: list of the two paths.
    """
    request = json.loads(Path(arguments[0]).read_text())
    Path(arguments[1]).write_text(json.dumps(compile_file(request)))


if __name__ == "__main__":
    main(sys.argv[1:])
