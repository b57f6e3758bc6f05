"""A function of a graph in fewer bytes: the same numbers from fewer nodes with short names.

A tracer writes a node for every call it sees and names it after where it was
called. Most of that is said several times: constants, shapes, slices of them.
"""

import functools
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2

from txl_tf.export.graph_references import node_of, reached, renamed

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# What only a tracer reads, or what it noted for people who look for errors.
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
    """Rewrites a function in place. What it computes stays, to the last bit.

    Asserts and all other nodes with effects stay, with what they wait for.

    Args:
        function: `FunctionDef`.
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
        # Names that users gave to arguments are kept beside the signature.
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
        """Leaves out what passes a tensor on and waits for nothing."""
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
        """Lets one node stand for all that compute the same from the same."""
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
            # An argument has none.
            return [node_of(each) for each in nodes[name].input] if name in nodes else []

        used = reached(starts, inputs_of)
        self._keep(node for node in self._function.node_def if node.name in used)

    def _shorten_names(self) -> None:
        """Gives names of a letter or two, the shortest to what is named most often."""
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
        """Callers count results; nobody asks for one by its name."""
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
            # An argument is there before all nodes, and each is waited for once.
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
