"""TPUStrategy's own program of one replica: training and evaluation."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, Self

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager import context

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.evaluation.evaluation_model import exact_products, unallocated_variables
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.tpu_compiler.lowering import LoweredProgram, lower, traced_tpu_strategy
from txl_tf.training.attention_choice import attention_choice
from txl_tf.training.trainer import Trainer

_ARGUMENT = re.compile(r"input(\d+):0$")
_MARK = "_tpu_replicate"
_METADATA, _INPUT, _OUTPUT = "TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput"


@dataclasses.dataclass(frozen=True)
class ReplicaProgram:
    """Graph of one replica as TensorFlow passes it to the TPU compiler.

    Attributes:
        graph_def: `GraphDef` of the operations that every replica runs.
        num_replicas: int.
        data: tuple with the names of inputs that are no variables.
        places: tuple of int. Where each of `data` is among the flattened
            arguments of `strategy.run`, counted from 1; 0 is the number of the
            replica, and arguments that are not used are not there.
        specs: tuple of a `tf.TensorSpec` for each of `data`.
        variables: dict of the names of inputs that are variables, each with
            the handle of every replica's.
        outputs: tuple with the names of the results.
    """

    graph_def: GraphDef
    num_replicas: int
    data: tuple[str, ...]
    places: tuple[int, ...]
    specs: tuple[tf.TensorSpec, ...]
    variables: dict[str, tuple[tf.Tensor, ...]]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, function: tf.types.experimental.ConcreteFunction) -> Self:
        """Takes the program out of a function that was traced.

        Args:
            function: concrete function that calls `strategy.run` once, be it
                in a loop.

        Raises:
            ValueError: If there is not exactly one program in it, or variables
                are packed.
        """
        places = list(_places(function.graph, ()))
        if len(places) != 1:
            raise ValueError(
                "`function` must call `strategy.run` exactly once. "
                f"Received: {len(places)} programs in {function.name}"
            )
        (graph, callers), metadata = places[0]
        return cls(**_taken_out(graph, callers, metadata.get_attr("num_replicas")))

    def lower(self) -> LoweredProgram:
        """Makes a program for the compiler of it.

        Returns:
            A `LoweredProgram`, whose parameters are `data` and then
            `variables`.
        """
        # Imported nodes call functions by name, which the context must know before.
        for function in self.graph_def.library.function:
            if not context.context().has_function(function.signature.name):
                context.context().add_function_def(function)
        return lower(self._call, self.specs, self.num_replicas)

    def _call(self, *data: tf.Tensor) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        inputs = dict(zip(self.data, data, strict=True))
        # The first replica's variables stand for all: every replica runs the same program.
        inputs |= {name: graph.capture(handles[0]) for name, handles in self.variables.items()}
        return tf.graph_util.import_graph_def(
            self.graph_def, input_map=inputs, return_elements=list(self.outputs), name="replica"
        )


def _places(graph: Any, callers: tuple) -> Iterator[tuple[tuple[Any, tuple], tf.Operation]]:
    """Graphs that have a program in them, with the operations that call them."""
    for operation in graph.get_operations():
        if operation.type == _METADATA:
            yield (graph, callers), operation
        elif operation.type in ("While", "StatelessWhile"):
            # The loop of steps runs on the host; what a replica runs is in its body.
            body = graph._get_function(operation.get_attr("body").name).graph
            yield from _places(body, (*callers, (graph, operation)))


def _taken_out(graph: Any, callers: tuple, num_replicas: int) -> dict[str, Any]:
    """Returns the fields of a `ReplicaProgram`."""
    marked = [each for each in graph.get_operations() if _mark_of(each) is not None]
    marked = [each for each in marked if each.type not in (_METADATA, _INPUT, _OUTPUT)]
    inside = {each.name for each in marked}
    # Constants outside are taken along: as parameters they would not be known to the compiler.
    constants = {
        tensor.op.name: tensor.op
        for operation in marked
        for tensor in operation.inputs
        if tensor.op.type == "Const" and tensor.op.name not in inside
    }
    inside |= constants.keys()
    entering = {
        tensor.name: tensor
        for operation in marked
        for tensor in operation.inputs
        if tensor.op.name not in inside
    }
    data, variables = {}, {}
    captures = _Captures(graph, callers)
    for name, tensor in entering.items():
        if tensor.dtype == tf.resource:
            variables[name] = captures.handles(tensor, num_replicas)
        else:
            data[name] = tf.TensorSpec(tensor.shape, tensor.dtype)
    # In the order of the arguments, not of their first use.
    data = dict(sorted(data.items(), key=lambda item: _place(item[0])))
    graph_def = GraphDef(versions=graph.as_graph_def().versions)
    graph_def.node.extend(_node(each, inside) for each in (*constants.values(), *marked))
    graph_def.library.CopyFrom(graph.as_graph_def().library)
    # The marks are for TensorFlow's rewriting pass, which is to find no program here.
    for function in graph_def.library.function:
        for node in function.node_def:
            node.attr.pop(_MARK, None)
    ends = [each for each in graph.get_operations() if each.type == _OUTPUT]
    return {
        "graph_def": graph_def,
        "num_replicas": num_replicas,
        "data": tuple(data),
        "places": tuple(map(_place, data)),
        "specs": tuple(data.values()),
        "variables": variables,
        "outputs": tuple(each.inputs[0].name for each in ends),
    }


def _mark_of(operation: tf.Operation) -> bytes | None:
    try:
        return operation.get_attr(_MARK)
    except ValueError:
        return None


def _place(name: str) -> int:
    """Returns the number that TPUStrategy puts into the name of an argument."""
    matched = _ARGUMENT.search(name)
    if matched is None:
        raise ValueError(f"The program must get its data as arguments. Received: {name}")
    return int(matched[1])


def _node(operation: tf.Operation, inside: set[str]) -> NodeDef:
    """Returns the operation as it is outside of the strategy."""
    node = NodeDef.FromString(operation.node_def.SerializeToString())
    node.attr.pop(_MARK, None)
    # The strategy's devices are not there; control inputs from outside order the host's work only.
    node.device = ""
    node.input[:] = [each for each in node.input if not each.startswith("^") or each[1:] in inside]
    if node.op == "CrossReplicaSum":
        # The same sum by the name that every compiler knows.
        node.op = "XlaAllReduce"
        node.attr["reduce_op"].s = b"Add"
        node.attr["mode"].s = b"CrossReplica"
    return node


class _Captures:
    """Search for the variables that a graph in a loop captures."""

    def __init__(self, graph: Any, callers: Sequence[tuple]) -> None:
        outermost = callers[0][0] if callers else graph
        self._outside = {inner.name: outer for outer, inner in outermost.captures}
        self._ways = []
        for outer, operation in reversed(callers):
            inner = outer._get_function(operation.get_attr("body").name).graph
            given = zip(inner.inputs, operation.inputs, strict=True)
            self._ways.append({placeholder.name: tensor for placeholder, tensor in given})

    def handles(self, tensor: tf.Tensor, num_replicas: int) -> tuple[tf.Tensor, ...]:
        """Returns the handles that every replica's variable has outside of all functions."""
        is_replicated = tensor.op.type == _INPUT
        replicated = list(tensor.op.inputs) if is_replicated else [tensor] * num_replicas
        if len(replicated) != num_replicas:
            raise ValueError(
                "The strategy must not pack variables. Received: "
                f"{len(replicated)} handles of {tensor.name} for {num_replicas} replicas"
            )
        return tuple(map(self._captured, replicated))

    def _captured(self, tensor: tf.Tensor) -> tf.Tensor:
        # From the innermost loop outwards, as what is captured is handed in.
        for way in self._ways:
            tensor = way[_source(tensor).name]
        name = _source(tensor).name
        if name not in self._outside:
            raise ValueError(f"`function` must capture its variables. Received: {name}")
        return self._outside[name]


def _source(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def training_program(
    experiment: ExperimentConfig, num_replicas: int, chip: str | None = None
) -> LoweredProgram:
    """Lowers what `Trainer` runs under `tf.distribute.TPUStrategy`.

    Args:
        experiment: `ExperimentConfig`.
        num_replicas: int. Replicas that share the global batch.
        chip: optional str. Generation of the chips, such as `v5e`.
    """
    trainer = traced_trainer(experiment, num_replicas, chip)
    program = ReplicaProgram.of(trainer.trace()).lower()
    reason = attention_choice(experiment, trainer.strategy).reason
    return dataclasses.replace(program, attention=reason)


def traced_trainer(
    experiment: ExperimentConfig, num_replicas: int, chip: str | None = None
) -> Trainer:
    """Returns a trainer whose variables take no memory and whose loop can only be traced.

    It is under a strategy from `traced_tpu_strategy`.
    """

    def batches_of_zeros(
        first_step: int, rows: range, per_replica_rows: int, num_steps: int
    ) -> tf.data.Dataset:
        shape = per_replica_rows, experiment.model.segment_length
        batch = {
            "token_ids": tf.zeros(shape, tf.int32),
            "target_ids": tf.zeros(shape, tf.int32),
            "start_of_stream": tf.zeros(shape[:1], tf.bool),
        }
        if experiment.training.document_boundaries == "mask":
            batch["document_starts"] = tf.zeros(shape, tf.bool)
        return tf.data.Dataset.from_tensors(batch).repeat()

    strategy = traced_tpu_strategy(num_replicas, chip=chip)
    # In this order: the strategy copies a value to the replicas that must take no memory before.
    with strategy.scope(), unallocated_variables():
        return Trainer(experiment, strategy, batches_of_zeros)


def evaluation_program(
    experiment: ExperimentConfig, num_replicas: int, chip: str | None = None
) -> LoweredProgram:
    """Lowers what `Evaluator` runs during training, under `tf.distribute.TPUStrategy`.

    Args:
        experiment: `ExperimentConfig`.
        num_replicas: int. Replicas that share the rows. Where the weights
            follow the text there is only one.
        chip: optional str. Generation of the chips, such as `v5e`.

    Returns:
        A `LoweredProgram`, the program of one replica. Its variables are
        those of the trainer.
    """
    trainer = traced_trainer(experiment, num_replicas, chip)
    evaluator = Evaluator(
        experiment.model,
        experiment.resolved_evaluation,
        masks_documents=experiment.training.document_boundaries == "mask",
        strategy=trainer.strategy,
        variables=trainer.inference_variables(),
    )
    num_rows = experiment.evaluation.batch_size
    _, step = evaluator.trace(num_rows)
    segments = evaluator.segments_per_read(-(-num_rows // num_replicas))
    with exact_products():
        lowered = ReplicaProgram.of(step).lower()
    return dataclasses.replace(
        lowered,
        attention=evaluator.attention(num_rows).reason,
        num_tokens=num_rows * segments * evaluator.config.segment_length,
    )
