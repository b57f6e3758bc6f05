"""A run on JAX matches the run on TensorFlow, on any number of devices."""

import json
import socket

import numpy as np
import pytest

from tests.jax_process import NEEDS_JAX, printed_by, start_on_jax
from tests.small_models import strategy_of
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

pytestmark = NEEDS_JAX
MODULE = "tests.training.toy_run_on_jax"


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
    return printed_by(start_on_jax(MODULE, on_tensorflow[1]))


def test_the_losses_of_200_steps_match_tensorflow(on_tensorflow, on_jax):
    assert on_jax["losses"] == pytest.approx(on_tensorflow[0], abs=1e-4)
    # Float32 means float32 products on every device.
    assert on_jax["exact_products"]
    # Rows in parts give the losses of whole batches.
    expected = on_jax["losses"][HALF : HALF + NUM_CROSSED]
    assert on_jax["parts"] == pytest.approx(expected, abs=1e-5)


def test_resuming_on_jax_is_bit_identical(on_jax):
    assert on_jax["same_bits"]
    assert on_jax["resumed"] == on_jax["losses"][HALF:]


def test_a_checkpoint_crosses_backends_both_ways(on_tensorflow, on_jax):
    losses, folder = on_tensorflow
    until = HALF + NUM_CROSSED
    assert on_jax["crossed"] == pytest.approx(losses[HALF:until], abs=1e-4)
    _, continued = resumed(strategy_of(1), load(folder / "half_on_jax.npz"), until)
    assert continued == pytest.approx(on_jax["losses"][HALF:until], abs=1e-4)


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
        environments = [{}]
        if num_processes > 1:
            with socket.create_server(("localhost", 0)) as server:
                first = server.getsockname()[1]
            cluster = {"worker": [f"localhost:{first}", "localhost:1"]}
            tasks = ({"type": "worker", "index": index} for index in (0, 1))
            configs = [json.dumps({"cluster": cluster, "task": task}) for task in tasks]
            environments = [{"TF_CONFIG": config} for config in configs]
        processes = [
            start_on_jax(MODULE, folder, num_devices=4 // num_processes, **environment)
            for environment in environments
        ]
        report, *_ = map(printed_by, processes)
        assert report["losses"] == pytest.approx(on_jax["losses"], abs=1e-6)
        assert report["rows_on_a_device"] == NUM_ROWS // 4
        assert report["same_bits"]
