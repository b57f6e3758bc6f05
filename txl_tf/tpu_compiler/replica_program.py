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
    are on one host, and its variables are on the CPU. Functions outside the replicas run as
    usual. Without `chip` features of some chips are left out. `packs_variables` gives the
    replicas' parts of a variable one handle, as on a TPU, which needs a logical CPU per replica;
    otherwise all parts are on the first one, each with a handle.
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
    """Cluster resolver that answers like a TPU with one host."""

    def __init__(self, num_replicas: int) -> None:
        # The original constructor looks for the TPU.
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

    `data` maps the names of inputs other than variables to their specs, in the order of the
    flattened arguments of `strategy.run`: the number in a name counts them from 1, and 0 is the
    replica's number. Unused arguments are absent. `variables` maps the names of the other inputs
    to the handles in every replica.
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
        # 1. The only program, perhaps in the body of loops, and its operations, which are marked.
        ((graph, callers, num_replicas),) = _programs(function.graph, ())
        marked = [each for each in graph.get_operations() if _is_marked(each)]
        inside = {each.name for each in marked}
        sources = [tensor for each in marked for tensor in each.inputs]
        # Outer constants are copied, because the compiler would not know the values of parameters.
        constants = {each.op.name: each.op for each in sources if each.op.type == "Const"}
        outer = [each for name, each in constants.items() if name not in inside]
        inside |= constants.keys()
        # 2. Tensors that enter it: data, and a handle of each variable for every replica.
        entering = {each.name: each for each in sources if each.op.name not in inside}
        handles = _captured_handles(graph, callers)

        def of_replicas(tensor: tf.Tensor) -> tuple[tf.Tensor, ...]:
            replicated = tensor.op.inputs if tensor.op.type == _INPUT else [tensor] * num_replicas
            return tuple(handles[_source(each).name] for each in replicated)

        data = {
            name: tf.TensorSpec(tensor.shape, tensor.dtype)
            for name, tensor in entering.items()
            if tensor.dtype != tf.resource
        }
        # 3. The marked operations as a graph of their own, with all functions that they call.
        graph_def = GraphDef(versions=graph.as_graph_def().versions)
        graph_def.node.extend(_node(each, inside) for each in (*outer, *marked))
        graph_def.library.CopyFrom(graph.as_graph_def().library)
        # TensorFlow's rewriting pass reads these marks, and must find no program here.
        for library_function in graph_def.library.function:
            for node in library_function.node_def:
                node.attr.pop(_MARK, None)
        return cls(
            graph_def=graph_def,
            num_replicas=num_replicas,
            # In the order of arguments, not of their first use.
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
    """Yields graphs that hold a program, the operations that call them, and their replicas."""
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
    """Returns the operation in its form outside the strategy."""
    node = NodeDef.FromString(operation.node_def.SerializeToString())
    node.attr.pop(_MARK, None)
    # The strategy's devices do not exist; outer control inputs only order the host's work.
    node.device = ""
    node.input[:] = [each for each in node.input if not each.startswith("^") or each[1:] in inside]
    if node.op == "CrossReplicaSum":
        # The same sum under the name that every compiler knows.
        node.op = "XlaAllReduce"
        node.attr["reduce_op"].s = b"Add"
        node.attr["mode"].s = b"CrossReplica"
    return node


def _captured_handles(graph: Any, callers: Sequence[tuple]) -> dict[str, tf.Tensor]:
    """Maps the names of a graph's inputs to the variables' handles outside of all functions."""
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
