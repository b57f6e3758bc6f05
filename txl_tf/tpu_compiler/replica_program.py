"""TPUStrategy's own program of one replica: training and evaluation."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.eager import context

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.evaluation.evaluator import Evaluator, exact_products, unallocated_variables
from txl_tf.tpu_compiler.lowering import LoweredProgram, lower, traced_tpu_strategy
from txl_tf.training.attention_choice import attention_choice
from txl_tf.training.trainer import Trainer

_ARGUMENT = re.compile(r"input(\d+):0$")
_MARK = "_tpu_replicate"
_METADATA, _INPUT, _OUTPUT = "TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput"


@dataclasses.dataclass(frozen=True)
class ReplicaProgram:
    """Graph of one replica as TensorFlow passes it to the TPU compiler.

    `data` are the names of inputs other than variables, with their `specs`. `places` are their
    indices among the flattened arguments of `strategy.run`, from 1; 0 is the replica's number,
    and unused arguments are absent. `variables` maps the names of the other inputs to the handles
    in every replica.
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
        """Extracts the program from a traced function with one call of `strategy.run`.

        The call may be in a loop. Raises ValueError without exactly one program, or if variables
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
        """Lowers the program, whose parameters are `data` and then `variables`."""
        # Imported nodes call functions by name, so the context must know them first.
        for function in self.graph_def.library.function:
            if not context.context().has_function(function.signature.name):
                context.context().add_function_def(function)
        return lower(self._call, self.specs, self.num_replicas)

    def _call(self, *data: tf.Tensor) -> list[tf.Tensor]:
        graph = tf.compat.v1.get_default_graph()
        inputs = dict(zip(self.data, data, strict=True))
        # All replicas run the same program, so the first replica's variables stand for all.
        inputs |= {name: graph.capture(handles[0]) for name, handles in self.variables.items()}
        return tf.graph_util.import_graph_def(
            self.graph_def, input_map=inputs, return_elements=list(self.outputs), name="replica"
        )


def _places(graph: Any, callers: tuple) -> Iterator[tuple[tuple[Any, tuple], tf.Operation]]:
    """Yields graphs that contain a program, with the operations that call them."""
    for operation in graph.get_operations():
        if operation.type == _METADATA:
            yield (graph, callers), operation
        elif operation.type in ("While", "StatelessWhile"):
            # The loop of steps runs on the host; its body contains a replica's program.
            body = graph._get_function(operation.get_attr("body").name).graph
            yield from _places(body, (*callers, (graph, operation)))


def _taken_out(graph: Any, callers: tuple, num_replicas: int) -> dict[str, Any]:
    """Returns the fields of a `ReplicaProgram`."""
    marked = [each for each in graph.get_operations() if _mark_of(each) is not None]
    marked = [each for each in marked if each.type not in (_METADATA, _INPUT, _OUTPUT)]
    inside = {each.name for each in marked}
    # Outer constants are copied, because the compiler would not know the values of parameters.
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
    # In the order of arguments, not of their first use.
    data = dict(sorted(data.items(), key=lambda item: _place(item[0])))
    graph_def = GraphDef(versions=graph.as_graph_def().versions)
    graph_def.node.extend(_node(each, inside) for each in (*constants.values(), *marked))
    graph_def.library.CopyFrom(graph.as_graph_def().library)
    # TensorFlow's rewriting pass reads these marks, and must find no program here.
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
    """Returns the number in the name that TPUStrategy gives an argument."""
    matched = _ARGUMENT.search(name)
    if matched is None:
        raise ValueError(f"The program must get its data as arguments. Received: {name}")
    return int(matched[1])


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


class _Captures:
    """Search for the variables captured by a graph in a loop."""

    def __init__(self, graph: Any, callers: Sequence[tuple]) -> None:
        outermost = callers[0][0] if callers else graph
        self._outside = {inner.name: outer for outer, inner in outermost.captures}
        self._ways = []
        for outer, operation in reversed(callers):
            inner = outer._get_function(operation.get_attr("body").name).graph
            given = zip(inner.inputs, operation.inputs, strict=True)
            self._ways.append({placeholder.name: tensor for placeholder, tensor in given})

    def handles(self, tensor: tf.Tensor, num_replicas: int) -> tuple[tf.Tensor, ...]:
        """Returns the handles of every replica's variable outside of all functions."""
        is_replicated = tensor.op.type == _INPUT
        replicated = list(tensor.op.inputs) if is_replicated else [tensor] * num_replicas
        if len(replicated) != num_replicas:
            raise ValueError(
                "The strategy must not pack variables. Received: "
                f"{len(replicated)} handles of {tensor.name} for {num_replicas} replicas"
            )
        return tuple(map(self._captured, replicated))

    def _captured(self, tensor: tf.Tensor) -> tf.Tensor:
        # From the innermost loop outwards, following each capture.
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
    """Lowers the program that `Trainer` runs under `tf.distribute.TPUStrategy`."""
    trainer = traced_trainer(experiment, num_replicas, chip)
    program = ReplicaProgram.of(trainer.trace()).lower()
    reason = attention_choice(experiment, trainer.strategy).reason
    return dataclasses.replace(program, attention=reason)


def save_training_program(
    experiment: ExperimentConfig, num_replicas: int, batches: tf.data.Dataset, folder: Path
) -> None:
    """Writes the program of `training_program` with its arguments in the steps of some batches.

    `batches` are those of each replica in turn. The program attends by plain operations, so that
    every device can run it. `program.json` lists its arguments, for each output the argument that
    it replaces, and the argument that records the losses. `arguments.npz` has them in order:
    `num_data` of shape `(num_steps, num_replicas, ...)`, then the initial state of shape
    `(num_replicas, ...)`.
    """
    parts = list(batches.as_numpy_iterator())
    num_steps = len(parts) // num_replicas
    training = experiment.training.replace(steps_per_loop=num_steps)
    trainer = traced_trainer(experiment.replace(training=training), num_replicas, has_values=True)
    program = ReplicaProgram.of(trainer.trace())
    lowered = program.lower()
    # As the trainer passes them: the number of the replica, the batch, the steps before the loop.
    zeros = np.zeros((num_steps, num_replicas), np.int32)
    passed: dict[str, Any] = {"replica": zeros + np.arange(num_replicas, dtype=np.int32)}
    for name, array in sorted(parts[0].items()):
        stacked = np.stack([part[name] for part in parts])
        passed[name] = stacked.reshape(num_steps, num_replicas, *array.shape)
    passed["first_step"] = zeros
    arguments = [list(passed.items())[place] for place in program.places]
    for handles in program.variables.values():
        name = handles[0]._name.removesuffix(":0")
        arguments.append((name, np.stack([read_variable(handle) for handle in handles])))
    description = {
        "num_replicas": num_replicas,
        "num_steps": num_steps,
        "num_data": len(program.data),
        "losses": [name for name, _ in arguments].index("loss"),
        "outputs": lowered.replaced_parameters(),
        "arguments": [
            {"name": name, "dtype": array.dtype.name, "shape": array.shape}
            for name, array in arguments
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "program.stablehlo").write_bytes(lowered.to_stablehlo())
    np.savez_compressed(folder / "arguments.npz", *(array for _, array in arguments))
    (folder / "program.json").write_text(json.dumps(description))


def read_variable(handle: tf.Tensor) -> np.ndarray:
    """Returns the value of a variable."""
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=_variable_spec(handle).dtype).numpy()


def _variable_spec(handle: tf.Tensor) -> tf.TensorSpec:
    described = handle._handle_data.shape_and_type[0]
    return tf.TensorSpec(described.shape, described.dtype)


def traced_trainer(
    experiment: ExperimentConfig,
    num_replicas: int,
    chip: str | None = None,
    has_values: bool = False,
) -> Trainer:
    """Returns a trainer under `traced_tpu_strategy`, whose loop can only be traced.

    Its variables have no memory, unless `has_values`.
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
    # In this order, because the strategy copies the values that must not take memory.
    allocation = contextlib.nullcontext() if has_values else unallocated_variables()
    with strategy.scope(), allocation:
        return Trainer(experiment, strategy, batches_of_zeros)


def evaluation_program(
    experiment: ExperimentConfig, num_replicas: int, chip: str | None = None
) -> LoweredProgram:
    """Lowers the program that `Evaluator` runs during training, for one replica.

    Its variables are the trainer's. Dynamic evaluation allows only one replica.
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
        program = ReplicaProgram.of(step)
        lowered = program.lower()
    variables = [_variable_spec(handles[0]) for handles in program.variables.values()]
    return dataclasses.replace(
        lowered,
        variable_bytes=sum(each.shape.num_elements() * each.dtype.size for each in variables),
        attention=evaluator.attention(num_rows).reason,
        num_tokens=num_rows * segments * evaluator.config.segment_length,
    )
