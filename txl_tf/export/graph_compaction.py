"""Compaction of a SavedModel graph: fewer nodes, shorter names, equal results.

A tracer writes a node for every call and names it after the call site, so constants,
shapes and slices occur several times.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, function_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2


def node_of(reference: str) -> str:
    """Returns the node in a reference `name:output:0`, `name:0`, `name` or `^name`."""
    return reference.removeprefix("^").split(":")[0]


def renamed(reference: str, names: dict[str, str]) -> str:
    """Replaces the node's name in a reference, if it has a new one."""
    name = node_of(reference)
    return reference.replace(name, names.get(name, name), 1)


def reached(starts: Iterable[str], following: Callable[[str], Iterable[str]]) -> set[str]:
    """Collects all names reachable from `starts`; `following` lists the references of a name."""
    waiting, found = list(starts), set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += following(name)
    return found


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Read only by a tracer, or noted for debugging.
_NOTES = (
    "_class",
    "_collective_manager_ids",
    "_construction_context",
    "_has_manual_control_dependencies",
    "_input_shapes",
    "_num_original_outputs",
    "_output_shapes",
)


class FunctionCompaction:
    """Compaction of one graph function in place, with bit-identical results.

    Asserts and all other nodes with effects stay, with their dependencies.
    """

    def __init__(self, function: function_pb2.FunctionDef) -> None:
        self._function = function

    def run(self) -> None:
        """Rewrites the function."""
        self._drop_notes()
        self._bypass_identities()
        while self._merge_equal_nodes():
            pass
        self._drop_unused_nodes()
        self._shorten_names()

    def _drop_notes(self) -> None:
        _drop(self._function.attr, _NOTES)
        # The signature keeps the names of the arguments.
        for index, attributes in list(self._function.arg_attr.items()):
            _drop(attributes.attr, (*_NOTES, "_user_specified_name"))
            if not attributes.attr:
                del self._function.arg_attr[index]
        for argument in self._function.signature.input_arg:
            argument.ClearField("handle_data")
        for node in self._function.node_def:
            _drop(node.attr, _NOTES)
            node.ClearField("experimental_debug_info")

    def _bypass_identities(self) -> None:
        """Removes identity nodes without control dependencies."""
        sources = {
            node.name: node.input[0]
            for node in self._function.node_def
            if node.op == "Identity" and len(node.input) == 1
        }

        def followed(reference: str) -> str:
            is_waited_for = reference.startswith("^")
            while (name := node_of(reference)) in sources:
                reference = sources[name]
            return f"^{name}" if is_waited_for else reference

        self._keep(node for node in self._function.node_def if node.name not in sources)
        self._rewire(followed)

    def _merge_equal_nodes(self) -> bool:
        """Merges nodes with equal operation, inputs and attributes."""
        firsts: dict[bytes, str] = {}
        merged: dict[str, str] = {}
        for node in self._function.node_def:
            if _has_effects(node.op):
                continue
            nameless = node_def_pb2.NodeDef()
            nameless.CopyFrom(node)
            nameless.ClearField("name")
            first = firsts.setdefault(nameless.SerializeToString(deterministic=True), node.name)
            if first != node.name:
                merged[node.name] = first
        self._keep(node for node in self._function.node_def if node.name not in merged)
        self._rewire(lambda reference: renamed(reference, merged))
        return bool(merged)

    def _drop_unused_nodes(self) -> None:
        nodes = {node.name: node for node in self._function.node_def}
        starts = [node_of(tensor) for tensor in self._function.ret.values()]
        starts += self._function.control_ret.values()
        starts += [node.name for node in nodes.values() if _has_effects(node.op)]

        def inputs_of(name: str) -> list[str]:
            return [node_of(each) for each in nodes[name].input] if name in nodes else []

        used = reached(starts, inputs_of)
        self._keep(node for node in self._function.node_def if node.name in used)

    def _shorten_names(self) -> None:
        """Gives names of one or two letters, the shortest to the nodes referenced most often."""
        function = self._function
        uses = {argument.name: 1 for argument in function.signature.input_arg}
        uses |= {node.name: 1 for node in function.node_def}
        for node in function.node_def:
            for reference in node.input:
                uses[node_of(reference)] += 1
        in_order = sorted(uses, key=lambda name: -uses[name])
        names = {name: _short_name(index) for index, name in enumerate(in_order)}
        for named in (*function.signature.input_arg, *function.node_def):
            named.name = names[named.name]
        self._rewire(lambda reference: renamed(reference, names))
        self._shorten_results()

    def _shorten_results(self) -> None:
        """Shortens the result names; callers address results by position."""
        function = self._function
        tensors = [function.ret[result.name] for result in function.signature.output_arg]
        function.ret.clear()
        for index, tensor in enumerate(tensors):
            function.signature.output_arg[index].name = _short_name(index)
            function.ret[_short_name(index)] = tensor
        effects = sorted(set(function.control_ret.values()))
        function.control_ret.clear()
        function.signature.control_output[:] = effects
        for name in effects:
            function.control_ret[name] = name

    def _keep(self, nodes: Iterable[node_def_pb2.NodeDef]) -> None:
        kept = list(nodes)
        del self._function.node_def[:]
        self._function.node_def.extend(kept)

    def _rewire(self, change: Callable[[str], str]) -> None:
        """Changes every reference to a node or an argument."""
        function = self._function
        arguments = {argument.name for argument in function.signature.input_arg}
        for node in function.node_def:
            references = [change(each) for each in node.input]
            data = [each for each in references if not each.startswith("^")]
            # Arguments exist before all nodes; each other dependency is listed once.
            waited = dict.fromkeys(each for each in references if each.startswith("^"))
            node.input[:] = [*data, *(each for each in waited if each[1:] not in arguments)]
        for name, tensor in list(function.ret.items()):
            function.ret[name] = change(tensor)
        for name, node_name in list(function.control_ret.items()):
            function.control_ret[name] = change("^" + node_name)[1:]


def _drop(attributes: MutableMapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        attributes.pop(name, None)


@functools.cache
def _has_effects(operation: str) -> bool:
    return tf.Graph().op_def_for_type(operation).is_stateful


def _short_name(index: int) -> str:
    """`a` to `z`, `aa`, `ab`, ..."""
    name = ""
    while index >= 0:
        name = _LETTERS[index % len(_LETTERS)] + name
        index = index // len(_LETTERS) - 1
    return name


def compact_graph(saved_model: saved_model_pb2.SavedModel) -> None:
    """Rewrites the graph of a SavedModel, as `tf.saved_model.save` writes it, in place.

    Computations stay, see `FunctionCompaction`, and equal functions are merged. Functions in
    which Python finds captured tensors by name stay unchanged. The nodes that would write a
    checkpoint are dropped, since an export is never changed.
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
    """Lists the functions that Python looks up by name when it loads the file."""
    (graph,) = saved_model.meta_graphs
    objects = graph.object_graph_def
    gradients = graph.graph_def.library.registered_gradients
    found = {*objects.concrete_functions, *(each.gradient_func for each in gradients)}
    for node in objects.nodes:
        found.add(node.bare_concrete_function.concrete_function_name)
        found.update(node.function.concrete_functions)
    return found


def _named_within(saved_model: saved_model_pb2.SavedModel) -> set[str]:
    """Lists the functions in which Python finds captured tensors by name."""
    nodes = saved_model.meta_graphs[0].object_graph_def.nodes
    return {node.captured_tensor.concrete_function for node in nodes}


def _drop_unused_nodes(graph: meta_graph_pb2.MetaGraphDef) -> None:
    """Keeps only the nodes that signatures, objects and the restoring of variables need."""
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
    """Merges all functions with the same body; returns true if there were any.

    Merging can make the callers equal, so it is repeated.
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
