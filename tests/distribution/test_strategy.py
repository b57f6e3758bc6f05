"""Choice of devices, addresses of servers, and errors about a TPU or a worker that is not there."""

import contextlib
import json
import socket
import threading
import time
from unittest import mock

import pytest
import tensorflow as tf

from txl_tf.distribution import strategy as module
from txl_tf.distribution.remote_hosts import remote_hosts
from txl_tf.distribution.server_address import described, is_address, tpu_addresses, unreachable
from txl_tf.distribution.strategy import create_strategy, is_chief, num_workers
from txl_tf.distribution.time_limit import within
from txl_tf.errors import InputMissingError, UsageError


def test_one_device_needs_no_strategy():
    strategy = create_strategy()
    assert strategy.num_replicas_in_sync == 1
    assert strategy is tf.distribute.get_strategy()
    assert num_workers(strategy) == 1 and is_chief(strategy) and remote_hosts(strategy) == []


def test_cpu_replicas_are_the_logical_devices():
    strategy = create_strategy(num_cpu_replicas=2)
    devices = [tf.DeviceSpec.from_string(device) for device in strategy.extended.worker_devices]
    assert [(each.device_type, each.device_index) for each in devices] == [("CPU", 0), ("CPU", 1)]
    assert num_workers(strategy) == 1 and is_chief(strategy) and remote_hosts(strategy) == []
    with pytest.raises(ValueError, match="Received: num_cpu_replicas=3"):
        create_strategy(num_cpu_replicas=3)


def test_a_tpu_that_is_not_there_is_reported_soon():
    begin = time.monotonic()
    message = "No TPU answers.*\n--tpu local\n.*tensorflow-tpu"
    with pytest.raises(InputMissingError, match=message):
        create_strategy(tpu="local")
    assert time.monotonic() - begin < 20.0


WORKERS = ["10.0.0.1:2222", "10.0.0.2:2222"]
FIRST = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    "text",
    [
        "{'cluster'",
        {"cluster": {}, "task": FIRST},
        {"cluster": {"worker": "10.0.0.1:2222"}, "task": FIRST},
        {"cluster": {"worker": ["10.0.0.1:99999"]}, "task": FIRST},
        {"cluster": {"worker": WORKERS[:1] * 2}, "task": FIRST},
        {"cluster": {"worker": WORKERS, "ps": ["a:1"]}, "task": FIRST},
        {"cluster": {"chief": ["a:1", "b:1"], "worker": WORKERS}, "task": FIRST},
        {"cluster": {"worker": WORKERS}},
        {"cluster": {"worker": WORKERS}, "task": {"type": "worker", "index": 2}},
    ],
)
def test_a_cluster_that_is_not_one_is_refused(text, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(UsageError, match=r"does not name the workers.*\nTF_CONFIG="):
        create_strategy()


@pytest.mark.parametrize(
    "text",
    [
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
    with pytest.raises(UsageError, match="cannot use a TPU or CPU replicas"):
        create_strategy(**arguments)


@contextlib.contextmanager
def port(*, listens):
    """A port of this machine that accepts connections and says nothing, or is closed."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        yield server.getsockname()[1]


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:\uff11", "a/b:1", "a:-1"])
def test_a_tpu_has_addresses_a_name_or_a_usage_error(text):
    assert tpu_addresses("local") == tpu_addresses("my-tpu") == []
    assert tpu_addresses("grpc://a:1,grpc://10.0.0.1:8470") == ["a:1", "10.0.0.1:8470"]
    assert tpu_addresses("grpc://[::1]:8470") == ["[::1]:8470"]
    assert not is_address(text)
    with pytest.raises(UsageError):
        tpu_addresses(f"grpc://{text}")


def test_servers_that_cannot_be_reached_are_told_apart():
    with port(listens=True) as there, port(listens=False) as closed:
        names = [f"127.0.0.1:{there}", f"127.0.0.1:{closed}", "no.such.host.invalid:1"]
        begin = time.monotonic()
        failures = unreachable(names, 1.0)
        assert time.monotonic() - begin < 10.0
    assert failures.keys() == set(names[1:])
    assert failures[names[1]] == "Connection refused"
    assert described(dict.fromkeys("ab", "r")) == "a (r), b (r)"


def test_a_server_that_comes_late_is_waited_for():
    with port(listens=False) as number:
        pass
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", number))
    threading.Timer(0.3, server.listen).start()
    with server:
        assert unreachable([f"127.0.0.1:{number}"], 20.0) == {}


def test_waiting_ends_after_its_time():
    forever = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.1 seconds"):
        within(0.1, forever.wait)
    forever.set()
    assert within(10.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(10.0, lambda: 1 // 0)


@pytest.mark.parametrize("listens", [False, True], ids=["closed", "silent"])
def test_an_address_where_no_tpu_answers_is_named(monkeypatch, listens):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    if listens:
        # TensorFlow would wait for ever, in a thread that the tests must not keep.
        forever = threading.Event()
        monkeypatch.setattr(module, "_connected_resolver", lambda tpu: forever.wait(30.0))
    with port(listens=listens) as number:
        begin = time.monotonic()
        with pytest.raises(InputMissingError, match=f"1 seconds.*\n.*127.0.0.1:{number}"):
            create_strategy(tpu=f"grpc://127.0.0.1:{number}")
        assert time.monotonic() - begin < 10.0
    if listens:
        forever.set()


def test_a_leader_does_not_wait_for_ever_for_workers(monkeypatch):
    monkeypatch.setattr(module, "START_SECONDS", 1.0)
    with port(listens=False) as own, port(listens=False) as other:
        addresses = [f"127.0.0.1:{own}", f"127.0.0.1:{other}"]
        values = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
        with pytest.raises(TimeoutError, match=rf"{addresses[1]} \(Connection refused\)"):
            module._joined(values)


def test_a_tpu_name_that_is_not_found_has_a_remedy():
    # The client of the Cloud TPU API has errors of its own.
    resolvers = tf.distribute.cluster_resolver
    with (
        mock.patch.object(resolvers, "TPUClusterResolver", side_effect=Exception("404")),
        pytest.raises(InputMissingError, match=r"'my-tpu': 404(.|\n)*tpu-vm describe my-tpu"),
    ):
        create_strategy(tpu="my-tpu")


def test_a_tpu_that_does_not_start_is_reported():
    with (
        mock.patch("txl_tf.distribution.strategy._connected_resolver"),
        mock.patch.object(
            tf.tpu.experimental,
            "initialize_tpu_system",
            side_effect=tf.errors.UnavailableError(None, None, "in use"),
        ),
        pytest.raises(InputMissingError, match=r"found but did not start: .*in use"),
    ):
        create_strategy(tpu="my-tpu")
