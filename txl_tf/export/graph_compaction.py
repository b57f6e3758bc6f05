"""A SavedModel's graph in fewer bytes, with the same signatures and the same numbers."""

from collections.abc import Iterable, Iterator

from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from txl_tf.export.function_compaction import FunctionCompaction
from txl_tf.export.graph_references import node_of, reached


def compact_graph(saved_model: saved_model_pb2.SavedModel) -> None:
    """Rewrites the graph of a SavedModel in place.

    What computes stays: see `FunctionCompaction`. Functions that are the same
    become one. Those of which Python finds a tensor by its name stay as they
    are. What would write the variables to a checkpoint again is left out, since
    an export is never changed.

    Args:
        saved_model: `SavedModel` of one graph, as `tf.saved_model.save` writes it.
    """
    (graph,) = saved_model.meta_graphs
    graph.saver_def.save_tensor_name = graph.saver_def.restore_op_name
    _drop_unused_nodes(graph)
    kept = _called_from_python(saved_model)
    named = _named_within(saved_model)
    for function in graph.graph_def.library.function:
        if function.signature.name not in named:
            FunctionCompaction(function).run()
    while _merge_equal_functions(graph, kept):
        pass
    _drop_unused_functions(graph, kept)


def _called_from_python(saved_model: saved_model_pb2.SavedModel) -> set[str]:
    """Functions that are found by their names when Python loads the file."""
    (graph,) = saved_model.meta_graphs
    objects = graph.object_graph_def
    gradients = graph.graph_def.library.registered_gradients
    found = {*objects.concrete_functions, *(each.gradient_func for each in gradients)}
    for node in objects.nodes:
        found.add(node.bare_concrete_function.concrete_function_name)
        found.update(node.function.concrete_functions)
    return found


def _named_within(saved_model: saved_model_pb2.SavedModel) -> set[str]:
    """Functions of which Python finds a tensor by its name: one that a gradient captures."""
    nodes = saved_model.meta_graphs[0].object_graph_def.nodes
    return {node.captured_tensor.concrete_function for node in nodes}


def _drop_unused_nodes(graph: meta_graph_pb2.MetaGraphDef) -> None:
    """Keeps what signatures, objects and the restoring of variables are made from."""
    tensors = [graph.saver_def.filename_tensor_name, graph.saver_def.restore_op_name]
    objects = graph.object_graph_def.nodes
    tensors += [each.constant.operation for each in objects if each.HasField("constant")]
    for definition in graph.signature_def.values():
        ends = (*definition.inputs.values(), *definition.outputs.values())
        tensors += [end.name for end in ends]
    nodes = {node.name: node for node in graph.graph_def.node}
    used = reached(map(node_of, tensors), lambda name: map(node_of, nodes[name].input))
    kept = [node for node in graph.graph_def.node if node.name in used]
    del graph.graph_def.node[:]
    graph.graph_def.node.extend(kept)
    for node in kept:
        node.attr.pop("_output_shapes", None)


def _merge_equal_functions(graph: meta_graph_pb2.MetaGraphDef, kept: set[str]) -> bool:
    """Lets one function stand for all with the same body.

    Returns whether there were any: their callers may have become the same.
    """
    library = graph.graph_def.library
    firsts: dict[bytes, str] = {}
    merged: dict[str, str] = {}
    for function in library.function:
        nameless = function_pb2.FunctionDef()
        nameless.CopyFrom(function)
        nameless.signature.ClearField("name")
        name = function.signature.name
        first = firsts.setdefault(nameless.SerializeToString(deterministic=True), name)
        if first != name and name not in kept:
            merged[name] = first
    functions = [each for each in library.function if each.signature.name not in merged]
    del library.function[:]
    library.function.extend(functions)
    for call in _calls(graph):
        call.name = merged.get(call.name, call.name)
    return bool(merged)


def _drop_unused_functions(graph: meta_graph_pb2.MetaGraphDef, kept: set[str]) -> None:
    library = graph.graph_def.library
    functions = {each.signature.name: each for each in library.function}
    starts = {call.name for call in _calls_of(graph.graph_def.node)} | (kept & functions.keys())
    used = reached(starts, lambda name: [call.name for call in _calls_of(functions[name].node_def)])
    kept_functions = [each for name, each in functions.items() if name in used]
    del library.function[:]
    library.function.extend(kept_functions)


def _calls(graph: meta_graph_pb2.MetaGraphDef) -> Iterator[attr_value_pb2.NameAttrList]:
    yield from _calls_of(graph.graph_def.node)
    for function in graph.graph_def.library.function:
        yield from _calls_of(function.node_def)


def _calls_of(nodes: Iterable[node_def_pb2.NodeDef]) -> Iterator[attr_value_pb2.NameAttrList]:
    for node in nodes:
        for value in node.attr.values():
            if value.HasField("func"):
                yield value.func
            yield from value.list.func
