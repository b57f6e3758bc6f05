"""What the rewriting of one function leaves, and what it must not touch."""

import tensorflow as tf

from txl_tf.export.function_compaction import FunctionCompaction

ROWS = tf.TensorSpec([None], tf.float32, "rows")


def compacted(function):
    """The definition of a function of `rows`, made small."""
    traced = tf.function(function, input_signature=[ROWS], autograph=False)
    traced_definition = traced.get_concrete_function().function_def
    definition = type(traced_definition)()
    definition.CopyFrom(traced_definition)
    FunctionCompaction(definition).run()
    return definition


def ops(definition):
    return [node.op for node in definition.node_def]


def test_equal_nodes_are_one_and_passed_on_tensors_are_their_sources():
    def function(rows):
        first = tf.identity(rows * 2.0 + 1.0)
        second = rows * 2.0 + 1.0
        unused = tf.math.exp(rows)
        return tf.identity(first) - tf.sqrt(second), unused * 0.0 + second

    definition = compacted(function)
    found = ops(definition)
    assert found.count("AddV2") == 2  # the common one, and that of the second result
    assert "Identity" not in found
    assert all(len(node.name) == 1 for node in definition.node_def)


def test_what_no_result_needs_is_left_out():
    definition = compacted(lambda rows: (tf.math.exp(rows), rows + 1.0)[1])
    assert "Exp" not in ops(definition)


def test_a_result_may_be_an_argument_itself():
    definition = compacted(lambda rows: tf.identity(tf.identity(rows)))
    assert not definition.node_def
    (result,) = definition.ret.values()
    assert result == definition.signature.input_arg[0].name


def test_effects_stay_in_their_order():
    def function(rows):
        is_good = tf.reduce_all(rows > 0.0)
        with tf.control_dependencies([tf.debugging.Assert(is_good, ["not above zero"])]):
            checked = tf.identity(rows)
        return checked * 2.0

    definition = compacted(function)
    waiting = [
        reference
        for node in definition.node_def
        for reference in node.input
        if reference.startswith("^")
    ]
    assert waiting
    assert definition.control_ret
    names = {node.name for node in definition.node_def}
    assert {reference[1:] for reference in waiting} <= names
    assert set(definition.control_ret.values()) <= names
    assert list(definition.signature.control_output) == list(definition.control_ret)
