"""Least times from counts and peaks."""

import pytest

from txl_tf.tpu_compiler.compiled_program import CompiledProgram
from txl_tf.tpu_compiler.roofline import Roofline
from txl_tf.tpu_compiler.topology import Topology


def program(**counts):
    return CompiledProgram(fits=True, needed_bytes=0, limit_bytes=0, **counts)


def test_the_slowest_resource_decides():
    topology = Topology.parse("v5e:4x4")
    arithmetic = Roofline.of(program(flops=197e12, hbm_bytes=10**9), topology)
    assert arithmetic.step_seconds == pytest.approx(1.0)
    assert arithmetic.bound_by == "arithmetic"
    memory = Roofline.of(program(flops=1e12, hbm_bytes=819 * 10**9), topology)
    assert memory.step_seconds == pytest.approx(1.0)
    assert memory.bound_by == "memory bandwidth"


def test_two_replicas_share_the_peaks_of_their_chip():
    one = Roofline.of(program(flops=123e12 / 2, hbm_bytes=450 * 10**9), Topology.parse("v3:2x2"))
    assert one.flop_seconds == pytest.approx(1.0)
    assert one.hbm_seconds == pytest.approx(1.0)


def test_all_reduce_passes_the_links_almost_twice_and_not_at_all_on_one_chip():
    counts = program(all_reduce_bytes=10**9)
    ring = Roofline.of(counts, Topology.parse("v5e:4x4"))
    assert ring.all_reduce_seconds == pytest.approx(2 * 15 / 16 * 1e9 / 200e9)
    assert Roofline.of(counts, Topology.parse("v5e:1x1")).all_reduce_seconds == 0.0


def test_figures_have_names():
    names = set(Roofline.of(program(), Topology.parse("v5e:2x2")).to_dict())
    assert names == {
        "flop_seconds",
        "hbm_seconds",
        "all_reduce_seconds",
        "step_seconds",
        "bound_by",
    }
