"""TPUStrategy's own program of one replica: traced without a TPU, and taken out of its graph."""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager import context
from tensorflow.python.tpu.tpu_system_metadata import TPUSystemMetadata

from txl_tf.distribution.strategy import set_chip
from txl_tf.tpu_compiler.lowered_program import LoweredProgram, lower

_MARK = "_tpu_replicate"
_METADATA, _INPUT, _OUTPUT = "TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput"


def traced_tpu_strategy(
    num_replicas: int, *, chip: str | None = None, packs_variables: bool = False
) -> tf.distribute.TPUStrategy:
    """Makes a strategy whose programs can be traced and lowered, but not run.

    The strategy and its traces are TensorFlow's own. Its TPU devices do not exist, its replicas
    are on one host, and its variables are on the CPU. Functions outside of the replicas run as
    usual. Without `chip`, programs use only features that all chips have. With `packs_variables`,
    the parts of a variable on all replicas have one handle, as on a TPU; this needs a logical CPU
    for each replica. Otherwise all parts are on the first CPU, and each has a handle.
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
    """Cluster resolver that answers like the resolver of a TPU with one host."""

    def __init__(self, num_replicas: int) -> None:
        # The constructor of the base class would look for the TPU.
        self._num_replicas = num_replicas

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        devices = [
            tf.config.LogicalDevice(f"/job:localhost/replica:0/task:0/device:TPU:{index}", "TPU")
            for index in range(self._num_replicas)
        ]
        return TPUSystemMetadata(self._num_replicas, 1, self._num_replicas, None, devices)

    def cluster_spec(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec({})


@dataclasses.dataclass(frozen=True)
class ReplicaProgram:
    """Graph of one replica as TensorFlow passes it to the TPU compiler.

    `data` maps the names of all inputs but variables to their specs, in the order of the flattened
    arguments of `strategy.run`. The number in a name counts the arguments from 1; the input with
    the number 0 is the number of the replica. Unused arguments are absent. `variables` maps the
    names of the other inputs to one handle for each replica.
    """

    graph_def: GraphDef
    num_replicas: int
    data: dict[str, tf.TensorSpec]
    variables: dict[str, tuple[tf.Tensor, ...]]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, function: tf.types.experimental.ConcreteFunction) -> Self:
        """Extracts the program from a traced function with one call of `strategy.run`.

        The call may be in a loop. Variables must be captured and not packed.
        """
        # 1. Find the only program, perhaps in the body of loops, and its marked operations.
        ((graph, callers, num_replicas),) = _programs(function.graph, ())
        operations = [each for each in graph.get_operations() if _is_marked(each)]
        inside = {each.name for each in operations}
        sources = [tensor for each in operations for tensor in each.inputs]
        # Constants outside of the program are copied into it. As parameters they would have no
        # values for the compiler.
        constants = {each.op.name: each.op for each in sources if each.op.type == "Const"}
        outer = [each for name, each in constants.items() if name not in inside]
        inside |= constants.keys()
        # 2. Find the tensors that enter the program: data, and the handles of variables.
        entering = {each.name: each for each in sources if each.op.name not in inside}
        handles = _captured_handles(graph, callers)

        def of_replicas(tensor: tf.Tensor) -> tuple[tf.Tensor, ...]:
            inputs = tensor.op.inputs if tensor.op.type == _INPUT else [tensor] * num_replicas
            return tuple(handles[_source(each).name] for each in inputs)

        data = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype)
            for name, tensor in entering.items()
            if tensor.dtype != tf.resource
        }
        # 3. Copy the marked operations to a graph of their own, with all functions that they call.
        graph_def = GraphDef(versions=graph.as_graph_def().versions)
        graph_def.node.extend(_node(each, inside) for each in (*outer, *operations))
        graph_def.library.CopyFrom(graph.as_graph_def().library)
        # Without the marks, TensorFlow's rewriting pass does not look for a program in this graph.
        for library_function in graph_def.library.function:
            for node in library_function.node_def:
                node.attr.pop(_MARK, None)
        return cls(
            graph_def=graph_def,
            num_replicas=num_replicas,
            # This is the order of the arguments. In the graph they are in the order of first use.
            data=dict(sorted(data.items(), key=lambda item: _place(item[0]))),
            variables={
                name: of_replicas(tensor)
                for name, tensor in entering.items()
                if tensor.dtype == tf.resource
            },
            outputs=tuple(
                each.inputs[0].name for each in graph.get_operations() if each.type == _OUTPUT
            ),
        )

    def lower(self) -> LoweredProgram:
        """Lowers the program, whose parameters are `data` and then `variables`."""
        # Imported nodes call functions by name, so the context must know them first.
        for function in self.graph_def.library.function:
            if not context.context().has_function(function.signature.name):
                context.context().add_function_def(function)
        return lower(self._call, tuple(self.data.values()), self.num_replicas)

    def _call(self, *data: tf.Tensor) -> list[tf.Tensor]:
        inputs = dict(zip(self.data, data, strict=True))
        # All replicas run the same program, so the first replica's variables stand for all.
        capture = tf.compat.v1.get_default_graph().capture
        inputs |= {name: capture(handles[0]) for name, handles in self.variables.items()}
        return tf.graph_util.import_graph_def(
            self.graph_def, input_map=inputs, return_elements=list(self.outputs), name="replica"
        )


def _programs(graph: Any, callers: tuple) -> Iterator[tuple[Any, tuple, int]]:
    """Yields each graph with a program, the operations that call it, and its number of replicas."""
    for operation in graph.get_operations():
        if operation.type == _METADATA:
            yield graph, callers, operation.get_attr("num_replicas")
        elif operation.type in ("While", "StatelessWhile"):
            # The loop of steps runs on the host; its body contains a replica's program.
            body = graph._get_function(operation.get_attr("body").name).graph
            yield from _programs(body, (*callers, (graph, operation)))


def _is_marked(operation: tf.Operation) -> bool:
    try:
        operation.get_attr(_MARK)
    except ValueError:
        return False
    return operation.type not in (_METADATA, _INPUT, _OUTPUT)


def _place(name: str) -> int:
    """Returns the number in the name that TPUStrategy gives an argument."""
    return int(name.rpartition("input")[2].removesuffix(":0"))


def _node(operation: tf.Operation, inside: set[str]) -> NodeDef:
    """Returns the node of an operation without anything that belongs to the strategy."""
    node = NodeDef.FromString(operation.node_def.SerializeToString())
    node.attr.pop(_MARK, None)
    # The strategy's devices do not exist. Control inputs from outside only order work of the host.
    node.device = ""
    node.input[:] = [each for each in node.input if not each.startswith("^") or each[1:] in inside]
    if node.op == "CrossReplicaSum":
        # This operation is the same sum, and every compiler knows its name.
        node.op = "XlaAllReduce"
        node.attr["reduce_op"].s = b"Add"
        node.attr["mode"].s = b"CrossReplica"
    return node


def _captured_handles(graph: Any, callers: Sequence[tuple]) -> dict[str, tf.Tensor]:
    """Maps the names of a graph's inputs to the handles of variables outside of all functions."""
    outermost = callers[0][0] if callers else graph
    handles = {inner.name: outer for outer, inner in outermost.captures}
    for outer, operation in callers:
        inner = outer._get_function(operation.get_attr("body").name).graph
        pairs = zip(inner.inputs, map(_source, operation.inputs), strict=True)
        handles = {to.name: handles[each.name] for to, each in pairs if each.name in handles}
    return handles


def _source(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor
