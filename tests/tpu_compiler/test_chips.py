"""Names of topologies, and what is known of the chips."""

import pytest

from txl_tf.errors import UsageError
from txl_tf.tpu_compiler.chips import CHIPS, EXAMPLES, Topology


@pytest.mark.parametrize(
    ("name", "num_chips", "num_replicas"),
    [
        ("v2:2x2", 4, 8),
        ("v3:4x4", 16, 32),
        ("v4:2x2x4", 16, 16),
        ("v5e:4x4", 16, 16),
        ("v5e:1x1", 1, 1),
        ("v5p:2x2x1", 4, 4),
        ("v6e:16x16", 256, 256),
    ],
)
def test_a_core_of_the_first_generations_and_a_chip_of_the_others_is_a_replica(
    name, num_chips, num_replicas
):
    topology = Topology.parse(name)
    assert (topology.num_chips, topology.num_replicas) == (num_chips, num_replicas)
    assert topology.name == name


@pytest.mark.parametrize(
    "name",
    ["v5e", "v5e:", "v5e:4x4x4", "v4:4x4", "v7:2x2", "v5e:0x2", "v5e:3x3", "v5e:1x4", "4x4", ""],
)
def test_what_is_no_topology_is_refused_with_an_example(name):
    with pytest.raises(UsageError) as raised:
        Topology.parse(name)
    assert f"--topology {name}" in str(raised.value)
    assert "v5e:4x4" in raised.value.remedy


def test_every_generation_has_an_example():
    assert {Topology.parse(name).chip.name for name in EXAMPLES} == set(CHIPS)
