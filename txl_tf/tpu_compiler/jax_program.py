"""Training step on JAX, compiled for a TPU that the machine does not have.

`TpuCompiler` starts this module as a process:

    python -m txl_tf.tpu_compiler.jax_program FOLDER REQUEST

The environment of the process sets the backend of Keras, and the settings of the compiler.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.imports import jax
from txl_tf.training.train_state import attention_choice
from txl_tf.training.trainer import Trainer


class MeshWithoutDevices(MeshStrategy):
    """Mesh of devices for which programs can only be compiled; its arrays have no values."""

    def _placed(self, array: np.ndarray, is_by_row: bool) -> Any:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=self.sharding(is_by_row))


def lowered_step(experiment: ExperimentConfig, strategy: MeshWithoutDevices) -> Any:
    """Lowers the training step of a run on a mesh."""

    def no_batches(**arguments: Any) -> tf.data.Dataset:
        raise AssertionError("a program that is only lowered reads no batch")

    num_replicas = strategy.num_replicas_in_sync
    num_rows = experiment.training.rows_per_replica(num_replicas) * num_replicas
    tokens = np.broadcast_to(np.int32(0), (num_rows, experiment.model.segment_length))
    inputs = {"token_ids": tokens, "target_ids": tokens, "start_of_stream": tokens[:, 0] > 0}
    if experiment.masks_documents:
        inputs["document_starts"] = tokens > 0
    return Trainer(experiment, strategy, no_batches).mesh_program.lower(
        {name: strategy.divided(array) for name, array in inputs.items()}
    )


def main(folder: str, request: str) -> None:
    """Compiles the training step of a request, and writes the optimized program to a folder.

    `request` is JSON with the arguments of the topology, the number of replicas and the experiment.
    """
    from jax.experimental import topologies

    values = json.loads(request)
    topology = topologies.get_topology_desc(platform="tpu", **values["topology"])
    strategy = MeshWithoutDevices(topology.devices[: values["num_replicas"]])
    experiment = ExperimentConfig.from_dict(values["experiment"])
    Path(folder, "attention").write_text(attention_choice(experiment, strategy).reason)
    lowered_step(experiment, strategy).compile(
        compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
