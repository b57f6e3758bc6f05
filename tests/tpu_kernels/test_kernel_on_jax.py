"""The kernel on JAX has the numbers of plain layers, and is loaded without TensorFlow."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_loss_gradients_memory_and_inference_equal_those_of_plain_layers():
    pytest.importorskip("jax")
    finished = subprocess.run(
        [sys.executable, "-m", "tests.tpu_kernels.kernel_on_jax"],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    for name, differences in json.loads(finished.stdout).items():
        assert max(differences.values()) <= 5e-6, (name, differences)
