"""References to nodes of a graph."""

import pytest

from txl_tf.export.graph_references import node_of, reached, renamed


@pytest.mark.parametrize("reference", ["sum", "sum:0", "sum:output:0", "^sum"])
def test_the_node_of_every_form_of_reference(reference):
    assert node_of(reference) == "sum"


def test_only_the_node_is_renamed():
    names = {"output": "b", "o": "c"}
    assert renamed("output:output:0", names) == "b:output:0"
    assert renamed("^o", names) == "^c"
    assert renamed("other:o:1", names) == "other:o:1"


def test_what_is_reached_through_a_cycle():
    following = {"a": "bc", "b": "a", "c": "", "d": "a"}
    assert reached("a", following.__getitem__) == {"a", "b", "c"}
