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
    "plain": {},
    "kernel": {"setting": "parts", "kernel": True},
    "bfloat16": {"policy": "mixed_bfloat16"},
}


@pytest.fixture(scope="module", params=RUNS)
def report(request):
    command = [sys.executable, "-m", "tests.tpu_compiler.executed_program"]
    command.append(json.dumps(RUNS[request.param]))
    environment = {**os.environ, "XLA_FLAGS": QUICK_XLA}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return json.loads(finished.stdout.splitlines()[-1])


def test_losses_weights_and_evaluations_match_mirrored_strategy(report):
    is_exact = report["policy"] == "float32"
    assert report["losses"] <= (1e-5 if is_exact else 1e-3)
    assert not is_exact or max(report["variables"], report["memory"]) <= 1e-5
    assert max(report["evaluation"].values()) <= (1e-7 if is_exact else 1e-3)
    # Replicas stay alike to the last bit.
    assert report["losses_alike"] and report["between_replicas"] == 0.0
