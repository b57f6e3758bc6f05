"""Many clients at once, slow ones, and those that leave."""

import concurrent.futures
import contextlib
import logging
import random
import socket
import threading
import time

import grpc
import pytest

from tests.measurements.measure_crowds import ANSWERED, crowd, latencies, main, slow_clients
from tests.serving.hostile_requests import good_rest
from tests.serving.http2_frames import begun_request, more_of_message
from tests.serving.raw_client import answers_in, exchange, rest_of
from tests.serving.servers import MODEL_NAME, Address
from txl_tf.export.export_verification import verify_export
from txl_tf.serving import LoopbackServer
from txl_tf.serving.errors import RequestError, StatusCode
from txl_tf.serving.request_engine import MemoryBudget, RequestQueue, ServerLimits

_HEAD = b"POST /v1/models/bytes:predict HTTP/1.1\r\nHost: a\r\nContent-Length: "


@contextlib.contextmanager
def _server(versions, **limits):
    with LoopbackServer(
        str(versions), verify_export, model_name=MODEL_NAME, limits=ServerLimits(**limits)
    ) as server:
        yield Address(server.rest_port, server.grpc_port)


@pytest.fixture(scope="module")
def usual(versions):
    with _server(versions) as server:
        yield server


@pytest.fixture(scope="module")
def impatient(versions):
    """A server that waits half a second for a body, and for a request."""
    with _server(versions, body_seconds=0.5, idle_seconds=0.5) as server:
        yield server


def _connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=20.0)


def test_every_client_of_a_crowd_is_answered(usual):
    statuses = crowd(usual, 40)
    with slow_clients(usual, 40):
        assert max(latencies(usual, 4, 5)) < 5.0
    assert set(statuses) <= ANSWERED
    assert statuses.total() == 40


@pytest.mark.slow
def test_slow_clients_beside_good_ones(monkeypatch):
    monkeypatch.setattr("sys.argv", ["measure_crowds", "--requests", "40"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 0


def test_one_connection_too_many_is_told(versions):
    with _server(versions, max_connections=2) as server, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(_connect(server.rest_port))
        [(status, _)] = answers_in(exchange(server.rest_port, good_rest(random.Random(0))))
    assert status == 503


@pytest.mark.slow
def test_bodies_end_in_time(impatient):
    with _connect(impatient.rest_port) as connection:
        connection.sendall(_HEAD + b"10\r\n\r\n{")
        start = time.monotonic()
        [(status, _)] = answers_in(rest_of(connection))
        assert status == 408
    with _connect(impatient.grpc_port) as connection:
        connection.sendall(begun_request(1000) + more_of_message(b"1"))
        received = b""
        while b"grpc-status\x011" not in received:  # cancelled
            received += connection.recv(1 << 16)
    assert time.monotonic() - start < 6.0


def test_connections_that_ask_nothing_end_in_time(impatient):
    for begun in (b"", _HEAD):
        with _connect(impatient.rest_port) as connection:
            connection.sendall(begun)
            assert rest_of(connection) == b""


def test_unfinished_bodies_are_counted_as_they_arrive(versions):
    limits = {"max_bodies_bytes": 1 << 20, "small_body_bytes": 1 << 10, "body_seconds": 5.0}
    with _server(versions, **limits) as server:
        with _connect(server.rest_port) as first, _connect(server.rest_port) as second:
            first.sendall(_HEAD + b"2000000\r\n\r\n" + b" " * 900_000)
            time.sleep(0.3)  # it is read by another thread
            second.sendall(_HEAD + b"900000\r\n\r\n" + b" " * 899_999)
            [(status, body)] = answers_in(rest_of(second))
            assert status == 503
            assert b"large bodies" in body
            # A small one is served beside.
            [(status, _)] = answers_in(exchange(server.rest_port, good_rest(random.Random(0))))
            assert status == 200
        time.sleep(0.5)
        content = b" " * 900_000
        answers = answers_in(exchange(server.rest_port, _HEAD + b"900000\r\n\r\n" + content))
        assert answers[0][0] == 400  # what left gave its bytes back


def test_a_client_that_leaves_prints_nothing(usual, caplog):
    with caplog.at_level(logging.WARNING):
        good = good_rest(random.Random(0))
        for length in (10, len(good) - 1, len(good)):
            for _ in range(5):
                with _connect(usual.rest_port) as connection:
                    linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    connection.sendall(good[:length])
                # Closed with a reset.
        channel = grpc.insecure_channel(f"127.0.0.1:{usual.grpc_port}")
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        for _ in range(5):
            call.future(b"a" * 1000).cancel()
        channel.close()
        time.sleep(0.5)
    assert "Traceback" not in caplog.text
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_queue_that_is_full_says_so():
    goes_on = threading.Event()
    queue = RequestQueue(num_running=1, max_waiting=1, wait_seconds=30.0)
    running = queue.submit(goes_on.wait)
    while not running.running():
        time.sleep(0.01)
    waiting = queue.submit(lambda: 7)
    with pytest.raises(RequestError, match="waiting") as caught:
        queue.submit(lambda: 8)
    assert (caught.value.code, caught.value.http_status) == (StatusCode.RESOURCE_EXHAUSTED, 503)
    goes_on.set()
    assert waiting.result(timeout=10) == 7
    assert queue.close(5.0)
    with pytest.raises(RequestError, match="ending"):
        queue.submit(lambda: 8)


def test_a_request_that_waited_too_long_is_not_begun():
    goes_on = threading.Event()
    queue = RequestQueue(num_running=1, max_waiting=9, wait_seconds=0.1)
    queue.submit(goes_on.wait)
    late = queue.submit(lambda: pytest.fail("begun"))
    time.sleep(0.2)
    assert not queue.close(0.1)  # the first one does not end
    goes_on.set()
    with pytest.raises(RequestError, match="waited"):
        late.result(timeout=10)


def test_memory_is_lent_to_its_limit():
    budget = MemoryBudget(100)
    with pytest.raises(RequestError, match="101 bytes") as caught, budget.lend(101, wait_seconds=1):
        pytest.fail("lent")
    assert caught.value.code == StatusCode.INVALID_ARGUMENT
    with budget.lend(60, wait_seconds=0):
        with pytest.raises(RequestError, match="others"), budget.lend(41, wait_seconds=0.05):
            pytest.fail("lent")
        with concurrent.futures.ThreadPoolExecutor() as threads:
            waiting = threads.submit(budget.take, 40)
            assert waiting.result()
    budget.give_back(40)
    assert budget.lent_bytes == 0


def test_rows_that_would_take_all_memory_are_refused(versions):
    with _server(versions, memory_fraction=1e-6) as server:
        [(status, body)] = answers_in(exchange(server.rest_port, good_rest(random.Random(0))))
    assert status == 400
    assert b"bytes of memory" in body
