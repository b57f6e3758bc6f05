"""A run on JAX has the numbers of the run on TensorFlow, and any number of devices the same."""

import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

from tests.slow_case import QUICK_XLA
from tests.toy_batches import strategy_of
from tests.training.toy_run_on_jax import (
    HALF,
    NUM_CROSSED,
    NUM_ROWS,
    NUM_STEPS,
    load,
    losses_until,
    new_trainer,
    resumed,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
]


def started_on_jax(folder, num_devices=1, tf_config=None):
    """A process that trains on JAX."""
    flags = f"{QUICK_XLA} --xla_force_host_platform_device_count={num_devices}"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    if tf_config is not None:
        environment["TF_CONFIG"] = json.dumps(tf_config)
    command = [sys.executable, "-m", "tests.training.toy_run_on_jax", str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=pipe, text=True)


def report_of(folder, *processes):
    for process in processes:
        _, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors
    return json.loads((folder / "losses.json").read_text())


@pytest.fixture(scope="module")
def on_tensorflow(tmp_path_factory):
    """Losses of the run on TensorFlow, and the folder with its states and those of JAX."""
    folder = tmp_path_factory.mktemp("run")
    trainer = new_trainer(strategy_of(1))
    np.savez(folder / "begin.npz", **trainer.arrays())
    losses = losses_until(trainer, HALF)
    np.savez(folder / "half.npz", **trainer.arrays())
    return losses + losses_until(trainer, NUM_STEPS), folder


@pytest.fixture(scope="module")
def on_jax(on_tensorflow):
    return report_of(on_tensorflow[1], started_on_jax(on_tensorflow[1]))


def test_the_losses_of_200_steps_are_those_of_tensorflow(on_tensorflow, on_jax):
    assert on_jax["losses"] == pytest.approx(on_tensorflow[0], abs=1e-4)


def test_resuming_on_jax_is_bit_identical(on_jax):
    assert on_jax["same_bits"]
    assert on_jax["resumed"] == on_jax["losses"][HALF:]


def test_float32_means_float32_products_on_every_device(on_jax):
    assert on_jax["exact_products"]


def test_a_checkpoint_crosses_backends_both_ways(on_tensorflow, on_jax):
    losses, folder = on_tensorflow
    until = HALF + NUM_CROSSED
    assert on_jax["crossed"] == pytest.approx(losses[HALF:until], abs=1e-4)
    _, continued = resumed(strategy_of(1), load(folder / "half_on_jax.npz"), until)
    assert continued == pytest.approx(on_jax["losses"][HALF:until], abs=1e-4)


def test_rows_in_parts_give_the_losses_of_whole_batches(on_jax):
    expected = on_jax["losses"][HALF : HALF + NUM_CROSSED]
    assert on_jax["parts"] == pytest.approx(expected, abs=1e-5)


def test_rematerialization_keeps_the_losses_and_saves_memory(on_jax):
    expected = on_jax["losses"][HALF : HALF + NUM_CROSSED]
    assert on_jax["rematerialized"] == pytest.approx(expected, abs=1e-5)
    plain, rematerialized = on_jax["megabytes"]
    assert rematerialized < 0.8 * plain


def test_devices_and_processes_divide_the_rows_and_change_no_loss(on_tensorflow, on_jax, tmp_path):
    for num_processes in (1, 2):
        folder = tmp_path / str(num_processes)
        folder.mkdir()
        (folder / "begin.npz").write_bytes((on_tensorflow[1] / "begin.npz").read_bytes())
        configs = [None]
        if num_processes > 1:
            with socket.create_server(("localhost", 0)) as server:
                first = server.getsockname()[1]
            cluster = {"worker": [f"localhost:{first}", "localhost:1"]}
            configs = [
                {"cluster": cluster, "task": {"type": "worker", "index": index}} for index in (0, 1)
            ]
        num_devices = 4 // num_processes
        processes = [started_on_jax(folder, num_devices, config) for config in configs]
        report = report_of(folder, *processes)
        assert report["losses"] == pytest.approx(on_jax["losses"], abs=1e-6)
        assert report["rows_on_a_device"] == NUM_ROWS // 4
        assert report["same_bits"]
