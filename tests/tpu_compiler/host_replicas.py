"""Executes the program of every replica on as many devices of a host, by JAX's client."""

import jax
import numpy as np
import tensorflow as tf

from tests.measurements import run_saved_program
from txl_tf.tpu_compiler.program import read_variable


class HostReplicas:
    """A compiled `ReplicaProgram` with the variables of every replica.

    Must be made before anything else of the process uses JAX, with as many CPU devices as
    replicas: `prepare`.
    """

    def __init__(self, program):
        self._program = program
        lowered = program.lower()
        self._replicas = run_saved_program.CompiledReplicas(
            lowered.to_stablehlo(),
            lowered.replaced_parameters(),
            [list(map(read_variable, handles)) for handles in program.variables.values()],
            program.num_replicas,
        )

    def __call__(self, *arguments):
        """Runs the program once."""
        numbers = np.arange(self._program.num_replicas, dtype=np.int32)
        by_place = [list(numbers), *arguments]
        return self._replicas([by_place[place] for place in self._program.places])

    def write_back(self):
        """Gives TensorFlow's variables the values that they have here."""
        state = self._replicas.state()
        for handles, parts in zip(self._program.variables.values(), state, strict=True):
            for handle, part in zip(handles, parts, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(part))


def prepare(num_replicas):
    """Must be called before JAX is used."""
    jax.config.update("jax_platforms", "cpu")
    run_saved_program.prepare(num_replicas)
