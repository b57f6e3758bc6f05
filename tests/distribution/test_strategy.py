import time

import pytest
import tensorflow as tf

from txl_tf.distribution.strategy import create_strategy
from txl_tf.errors import InputMissingError, UsageError


def test_one_device_needs_no_strategy():
    strategy = create_strategy()
    assert strategy.num_replicas_in_sync == 1
    assert strategy is tf.distribute.get_strategy()


def test_cpu_replicas_are_the_logical_devices():
    strategy = create_strategy(num_cpu_replicas=2)
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    devices = [tf.DeviceSpec.from_string(device) for device in strategy.extended.worker_devices]
    assert [(device.device_type, device.device_index) for device in devices] == [
        ("CPU", 0),
        ("CPU", 1),
    ]


def test_more_replicas_than_logical_cpus_are_refused_once_tensorflow_runs():
    tf.config.list_logical_devices("CPU")
    with pytest.raises(ValueError, match="Received: num_cpu_replicas=3"):
        create_strategy(num_cpu_replicas=3)


def test_a_tpu_that_is_not_there_is_reported_soon():
    begin = time.monotonic()
    with pytest.raises(InputMissingError, match="No TPU answers") as raised:
        create_strategy(tpu="local")
    assert time.monotonic() - begin < 20.0
    assert raised.value.exit_code == 66
    assert raised.value.where == "--tpu local"
    assert len(str(raised.value).splitlines()) == 3


def test_a_tpu_and_cpu_replicas_exclude_each_other():
    with pytest.raises(UsageError, match="either a TPU or CPU replicas") as raised:
        create_strategy(tpu="local", num_cpu_replicas=2)
    assert raised.value.exit_code == 2
