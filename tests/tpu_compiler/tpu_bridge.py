"""Result of TensorFlow's TPU bridge, through which every function becomes a program of a TPU."""

import collections
import dataclasses
import functools
import re

from tensorflow.python import pywrap_mlir

from txl_tf.tpu_compiler.replica_program import traced_tpu_strategy

NUM_REPLICAS = 2
PIPELINE = "tf-replicated-clustering-bridge-v2"
COLLECTIVES = {
    "tf.AllToAll",
    "tf.CollectivePermute",
    "tf.CrossReplicaSum",
    "tf.XlaAllReduce",
    "tf.XlaReduceScatter",
}
# Operations of the host between steps: it fetches batches, runs the loop and passes on variables.
HOST_OPERATIONS = {
    "tf.AddV2",
    "tf.AssignVariableOp",
    "tf.Const",
    "tf.Identity",
    "tf.IteratorGetNext",
    "tf.Less",
    "tf.LogicalAnd",
    "tf.LogicalNot",
    "tf.ReadVariableOp",
    "tf.TPUCompilationResult",
    "tf.ToBool",
    "tf.WhileRegion",
    "tf.Yield",
    "tf_device.cluster_func",
    "tf_device.replicate",
    "tf_device.return",
}


@dataclasses.dataclass(frozen=True)
class BridgedProgram:
    """Operations on the host and on each replica."""

    text: str

    def _functions(self):
        parts = re.split(r"^  func\.func ", self.text, flags=re.MULTILINE)[1:]
        return {re.match(r"(?:private )?@(\w+)", part)[1]: part for part in parts}

    def _cluster_and_host(self):
        names = set(re.findall(r'"tf_device\.cluster_func".*?func = @(\w+)', self.text))
        functions = self._functions()
        # The first function is the traced one; the cluster calls all others.
        host, *others = functions
        assert names <= set(others)
        return "".join(functions[name] for name in others), functions[host]

    @property
    def num_clusters(self):
        return self.text.count('"tf_device.cluster_func"')

    @property
    def host_operations(self):
        return _operations(self._cluster_and_host()[1])

    @property
    def cluster_operations(self):
        return _operations(self._cluster_and_host()[0])

    @property
    def num_written(self):
        """Number of variables of a replica that the host writes after a step."""
        return self.host_operations["tf.AssignVariableOp"]

    @property
    def num_aliased(self):
        """Number of inputs whose memory an output reuses."""
        return len(set(re.findall(r"tf\.aliasing_output = (\d+)", self.text)))

    @property
    def summed_shapes(self):
        """The shape of each tensor that is summed over the replicas, with `?` where unknown."""
        shapes = re.findall(r'"tf\.CrossReplicaSum"\(.*?: \(tensor<([\dx?]*?)x?\w\d+>', self.text)
        return [tuple(filter(None, each.split("x"))) for each in shapes]


def _operations(text):
    names = re.findall(r'(?:= |^\s*)"?(tf(?:_device|_executor)?\.\w+)"?', text, re.MULTILINE)
    return collections.Counter(names)


@functools.cache
def traced_replicas():
    """Returns the strategy that traces; all tests of a process share one."""
    return traced_tpu_strategy(NUM_REPLICAS, packs_variables=True)


def through_the_bridge(function):
    """Sends a concrete function through the bridge, and returns the program."""
    text = pywrap_mlir.import_function(function, "canonicalize", False)
    return BridgedProgram(pywrap_mlir.experimental_run_pass_pipeline(text, PIPELINE, False))


def assert_runs_on_replicas(program):
    """Fails unless each replica has one program and the host runs nothing."""
    assert program.num_clusters == 1
    assert "_xla_outside_compilation" not in program.text
    assert set(program.host_operations) - HOST_OPERATIONS == set()
    assert program.num_aliased == program.num_written
