import json
import time

import pytest
import tensorflow as tf

from txl_tf.distribution.strategy import create_strategy, is_chief, num_workers
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


def test_one_process_without_workers_is_the_chief():
    for strategy in (create_strategy(), create_strategy(num_cpu_replicas=2)):
        assert num_workers(strategy) == 1
        assert is_chief(strategy)


WORKERS = ["10.0.0.1:2222", "10.0.0.2:2222"]
FIRST = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{'cluster'", "not JSON"),
        ("[1]", "not an object"),
        ({"cluster": {}, "task": FIRST}, "names no `worker`"),
        ({"cluster": {"worker": "10.0.0.1:2222"}, "task": FIRST}, "`cluster.worker` is not a list"),
        ({"cluster": {"worker": ["10.0.0.1:99999"]}, "task": FIRST}, "not a list of `host:port`"),
        ({"cluster": {"worker": WORKERS[:1] * 2}, "task": FIRST}, "an address twice"),
        ({"cluster": {"worker": WORKERS, "ps": ["a:1"]}, "task": FIRST}, "the job `ps`"),
        (
            {"cluster": {"chief": ["a:1", "b:1"], "worker": WORKERS}, "task": FIRST},
            "more than one `chief`",
        ),
        ({"cluster": {"worker": WORKERS}}, "`task.type` is none of worker"),
        (
            {"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 2}},
            "`task.index` is not between 0 and 1",
        ),
    ],
)
def test_a_cluster_that_is_not_one_is_refused_with_the_reason(text, what, monkeypatch):
    shown = text if isinstance(text, str) else json.dumps(text)
    monkeypatch.setenv("TF_CONFIG", shown)
    with pytest.raises(UsageError) as raised:
        create_strategy()
    assert what in raised.value.what
    assert raised.value.exit_code == 2
    assert raised.value.where.startswith("TF_CONFIG=")
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"environment": "cloud"}',
        '{"cluster": {"chief": ["10.0.0.1:2222"]}, "task": {"type": "chief", "index": "0"}}',
    ],
)
def test_a_variable_without_other_workers_is_one_machine(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    assert create_strategy() is tf.distribute.get_strategy()


@pytest.mark.parametrize("arguments", [{"tpu": "local"}, {"num_cpu_replicas": 2}])
def test_workers_exclude_a_tpu_and_cpu_replicas(arguments, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": WORKERS}, "task": FIRST}))
    with pytest.raises(UsageError, match="neither a TPU nor CPU replicas"):
        create_strategy(**arguments)
