"""Processes on JAX for tests on TensorFlow, because a process has only one Keras backend."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.slow_case import QUICK_XLA
from tests.source_tree import ROOT

NEEDS_JAX = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
]


def start_on_jax(module, *arguments, num_devices=1, **environment):
    """Starts a module of the tests in a process on JAX."""
    flags = f"{QUICK_XLA} --xla_force_host_platform_device_count={num_devices}"
    environment = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags} | environment
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed_by(process):
    """Waits for a process and returns the lines of JSON that it prints, as one dict."""
    output, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    # Libraries for several processes print lines of their own.
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {name: value for line in lines for name, value in line.items()}
