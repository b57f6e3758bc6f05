"""Compaction of a SavedModel graph: fewer nodes, shorter names, equal results."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import txl_tf
from tests.export.conftest import CONFIG, MODEL_CARD, kept_signatures
from tests.export.requests import nothing_read, random_ids, sampling, score, tensors
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer
from txl_tf.export import version_folder
from txl_tf.export.graph_compaction import (
    FunctionCompaction,
    compact_graph,
)

ROWS = tf.TensorSpec([None], tf.float32, "rows")


def read_graph(folder):
    return saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())


def compact(folder):
    """Rewrites the graph in a folder, and returns it."""
    saved_model = read_graph(folder)
    compact_graph(saved_model)
    (folder / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    return saved_model.meta_graphs[0].graph_def


def save(module, folder):
    function = tf.function(module.function, input_signature=[ROWS], autograph=False)
    tf.saved_model.save(module, str(folder), function)
    return read_graph(folder).meta_graphs[0]


def result_of(folder, rows):
    loaded = tf.saved_model.load(str(folder))
    return loaded.signatures["serving_default"](rows=tf.constant(rows))


@pytest.fixture(scope="module")
def written_by_tensorflow(model, tmp_path_factory):
    """The export of a text model without the rewriting."""
    folder = tmp_path_factory.mktemp("whole") / "1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(version_folder, "compact_graph", lambda saved_model: None)
        txl_tf.export_saved_model(model, folder, MODEL_CARD, tokenizer=ByteTokenizer())
    return folder


@pytest.mark.slow
def test_an_export_is_a_third_and_gives_the_same_bits(
    written_by_tensorflow, exported_texts, text_signatures
):
    whole = kept_signatures(written_by_tensorflow)
    small_graph, whole_graph = read_graph(exported_texts), read_graph(written_by_tensorflow)
    assert small_graph.ByteSize() < 0.34 * whole_graph.ByteSize()
    text = random_ids(3, 3 * CONFIG.segment_length + 2, seed=5)
    assert set(text_signatures) == set(whole)
    expected = score(whole, text, nothing_read(3))
    found = score(text_signatures, text, nothing_read(3))
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    state = {"previous_token_ids": np.array([-1, 5], "int32"), **nothing_read(2)}
    settings = sampling(2, max_tokens=9, temperature=1.0, seed=[3, 4])
    request = tensors({"texts": [b"ab", b"c"], **settings, **state})
    expected = whole["generate_text"](**request)
    found = text_signatures["generate_text"](**request)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@pytest.mark.slow
def test_inputs_and_outputs_keep_their_names(written_by_tensorflow, exported_texts):
    small, whole = read_graph(exported_texts), read_graph(written_by_tensorflow)
    definitions = [graph.meta_graphs[0].signature_def for graph in (small, whole)]
    assert definitions[0] == definitions[1]


class Branches(tf.Module):
    """A signature that calls equal functions in its branches, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.num_calls = tf.Variable(0.0)

    def function(self, rows):
        self.num_calls.assign_add(1.0)
        doubled = [
            tf.cond(tf.reduce_sum(rows) > limit, lambda: rows * 2.0, lambda: rows - 1.0)
            for limit in (0.0, 10.0, 20.0)
        ]
        return {"doubled": tf.stack(doubled), "num_calls": self.num_calls.read_value()}


def test_equal_functions_are_one_and_variables_are_restored(tmp_path):
    module = Branches()
    module.num_calls.assign(41.0)
    num_functions = len(save(module, tmp_path).graph_def.library.function)
    expected = result_of(tmp_path, [6.0, 7.0])
    # Three times two branches are two, and nothing writes checkpoints.
    assert len(compact(tmp_path).library.function) <= num_functions - 4 - 1
    found = result_of(tmp_path, [6.0, 7.0])
    np.testing.assert_array_equal(found["doubled"], expected["doubled"])
    np.testing.assert_array_equal(found["doubled"], [[12, 14], [12, 14], [5, 6]])
    assert found["num_calls"] == expected["num_calls"] == 42.0


class WithGradient(tf.Module):
    """A signature with a gradient of its own, which captures a tensor, and a constant."""

    def __init__(self):
        super().__init__()
        self.unused = tf.constant([1.0, 2.0])
        self.kept = tf.function(lambda: self.unused * 2.0)
        self.kept.get_concrete_function()

    def function(self, rows):
        factor = tf.reduce_sum(rows)

        @tf.custom_gradient
        def scaled(values):
            return values * factor, lambda upstream: upstream * factor

        return {"scaled": scaled(rows)}


def test_what_python_finds_by_its_name_stays(tmp_path):
    objects = save(WithGradient(), tmp_path).object_graph_def.nodes
    kinds = {node.WhichOneof("kind") for node in objects}
    assert kinds >= {"captured_tensor", "constant"}
    compact(tmp_path)
    np.testing.assert_array_equal(result_of(tmp_path, [1.0, 2.0])["scaled"], [3.0, 6.0])
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.kept(), [2.0, 4.0])


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
