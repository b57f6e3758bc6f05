"""Names of topologies, and memory and roofline time of compiled programs."""

import pytest

from txl_tf.errors import UsageError
from txl_tf.tpu_compiler.compiled_program import CompiledProgram, hbm_at_once
from txl_tf.tpu_compiler.topologies import Topology


def roofline(name, **counts):
    program = CompiledProgram(needed_bytes=0, limit_bytes=0, **counts)
    return program.roofline(Topology.parse(name))


def test_the_slowest_resource_decides():
    assert roofline("v5e:4x4", flops=197e12, hbm_bytes=10**9)["step_seconds"] == pytest.approx(1)
    assert roofline("v5e:4x4", flops=1e12, hbm_bytes=819e9)["step_seconds"] == pytest.approx(1)
    # Two replicas share the peaks of their chip.
    shared = roofline("v3:2x2", flops=123e12 / 2, hbm_bytes=450e9)
    assert shared["flop_seconds"] == shared["hbm_seconds"] == pytest.approx(1)


def test_all_reduce_passes_the_links_almost_twice_and_not_at_all_on_one_chip():
    ring = roofline("v5e:4x4", all_reduce_bytes=10**9)["all_reduce_seconds"]
    assert ring == pytest.approx(2 * 15 / 16 * 1e9 / 200e9)
    assert roofline("v5e:1x1", all_reduce_bytes=10**9)["all_reduce_seconds"] == 0.0


def test_both_programs_are_in_memory_and_weights_once():
    training = CompiledProgram(needed_bytes=70, limit_bytes=100, argument_bytes=50)
    evaluation = CompiledProgram(needed_bytes=90, limit_bytes=100, argument_bytes=45)
    together = hbm_at_once(training, evaluation, shared_bytes=40)
    assert together["while_training_bytes"] == 70
    assert together["while_evaluating_bytes"] == 50 + (90 - 40)
    assert together["fits"]
    assert not hbm_at_once(training, evaluation, shared_bytes=30)["fits"]


def test_a_core_of_the_first_generations_and_a_chip_of_the_others_is_a_replica():
    for name, num_chips, num_replicas in (("v3:4x4", 16, 32), ("v4:2x2x4", 16, 16)):
        topology = Topology.parse(name)
        assert (topology.num_chips, topology.num_replicas) == (num_chips, num_replicas)
        assert topology.name == name


@pytest.mark.parametrize("name", ["v5e", "v5e:", "v5e:4x4x4", "v4:4x4", "v7:2x2", "v5e:3x3", "4x4"])
def test_other_topologies_are_refused_with_an_example(name):
    with pytest.raises(UsageError, match=f"--topology {name}") as raised:
        Topology.parse(name)
    assert "v5e:4x4" in raised.value.remedy
