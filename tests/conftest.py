"""Set-up of every test process: two logical CPUs stand in for two replicas."""

import os

os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pytest

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()],
    )


def pytest_addoption(parser):
    parser.addoption(
        "--layouts", type=int, default=12, help="layouts of rows and hosts that are tried"
    )


@pytest.fixture(autouse=True)
def seeded():
    """The same initial weights in every run of a test."""
    keras.utils.set_random_seed(1234)
