"""TPUStrategy's own program, executed: see `executed_program`."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.slow_case import QUICK_XLA

HAS_JAX = importlib.util.find_spec("jax") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_JAX, reason="jax is not installed"),
]
# Each is a process of its own, because the CPU is split among the replicas once.
RUNS = {
    "plain": ["--replicas", "2"],
    "kernel": ["--replicas", "2", "--setting", "parts", "--kernel"],
    "bfloat16": ["--replicas", "2", "--policy", "mixed_bfloat16"],
}


@pytest.fixture(scope="module", params=RUNS)
def found(request):
    command = [sys.executable, "-m", "tests.tpu_compiler.executed_program", *RUNS[request.param]]
    environment = {**os.environ, "XLA_FLAGS": QUICK_XLA}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return json.loads(finished.stdout.splitlines()[-1])


def test_losses_and_weights_are_those_of_mirrored_strategy(found):
    is_exact = found["policy"] == "float32"
    assert found["losses"] <= (1e-5 if is_exact else 1e-3)
    if is_exact:
        assert found["variables"] <= 1e-5
        assert found["memory"] <= 1e-5


def test_replicas_stay_alike_to_the_last_bit(found):
    assert found["losses_alike"]
    assert found["between_replicas"] == 0.0


def test_evaluations_are_those_of_mirrored_strategy(found):
    bar = 1e-7 if found["policy"] == "float32" else 1e-3
    assert all(value <= bar for value in found["evaluation"].values())
