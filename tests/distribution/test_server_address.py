"""Addresses where nobody answers end in a stated time, with what was tried."""

import contextlib
import socket
import threading
import time

import pytest

from txl_tf.distribution import strategy
from txl_tf.distribution.server_address import (
    described,
    is_address,
    tpu_addresses,
    unreachable,
    within,
)
from txl_tf.errors import InputMissingError, UsageError


@contextlib.contextmanager
def port(*, listens):
    """A port of this machine that accepts connections and says nothing, or is closed."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        yield server.getsockname()[1]


def test_addresses_of_a_tpu():
    assert tpu_addresses("local") == []
    assert tpu_addresses("my-tpu") == []
    assert tpu_addresses("grpc://a:1,grpc://10.0.0.1:8470") == ["a:1", "10.0.0.1:8470"]
    assert tpu_addresses("grpc://[::1]:8470") == ["[::1]:8470"]


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:\uff11", "a/b:1", "a:-1"])
def test_what_is_no_address(text):
    assert not is_address(text)
    with pytest.raises(UsageError):
        tpu_addresses(f"grpc://{text}")


def test_what_cannot_be_reached_is_told_apart():
    with port(listens=True) as there, port(listens=False) as closed:
        names = [f"127.0.0.1:{there}", f"127.0.0.1:{closed}", "no.such.host.invalid:1"]
        begin = time.monotonic()
        failures = unreachable(names, 1.0)
        assert time.monotonic() - begin < 10.0
    assert failures.keys() == set(names[1:])
    assert failures[names[1]] == "Connection refused"
    assert described(dict.fromkeys("abcde", "r")) == "a (r), b (r), c (r) and 2 more"


def test_a_server_that_comes_late_is_waited_for():
    with port(listens=False) as number:
        pass
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", number))
    threading.Timer(0.3, server.listen).start()
    with server:
        assert unreachable([f"127.0.0.1:{number}"], 20.0) == {}


def test_waiting_ends():
    forever = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.1 seconds"):
        within(0.1, forever.wait)
    forever.set()
    assert within(10.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(10.0, lambda: 1 // 0)


@pytest.mark.parametrize("listens", [False, True], ids=["closed", "silent"])
def test_an_address_where_no_tpu_answers(monkeypatch, listens):
    monkeypatch.setattr(strategy, "ANSWER_SECONDS", 1.0)
    if listens:
        # TensorFlow would wait for ever, in a thread that the tests must not keep.
        forever = threading.Event()
        monkeypatch.setattr(strategy, "_connected_resolver", lambda tpu: forever.wait(30.0))
    with port(listens=listens) as number:
        begin = time.monotonic()
        with pytest.raises(InputMissingError) as raised:
            strategy.create_strategy(tpu=f"grpc://127.0.0.1:{number}")
        assert time.monotonic() - begin < 10.0
    if listens:
        forever.set()
    assert raised.value.exit_code == 66
    assert f"127.0.0.1:{number}" in raised.value.where
    assert "1 seconds" in raised.value.what
    assert len(str(raised.value).splitlines()) == 3


def test_a_leader_does_not_wait_for_ever_for_workers(monkeypatch):
    monkeypatch.setattr(strategy, "START_SECONDS", 1.0)
    with port(listens=False) as own, port(listens=False) as other:
        addresses = [f"127.0.0.1:{own}", f"127.0.0.1:{other}"]
        values = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}}
        with pytest.raises(TimeoutError) as raised:
            strategy._joined(values)
    assert f"{addresses[1]} (Connection refused)" in str(raised.value)
    assert addresses[0] not in str(raised.value)
