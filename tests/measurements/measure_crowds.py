"""Lets many clients ask at once, and slow ones hold connections, and prints how it went.

    python -m tests.measurements.measure_crowds --clients 200 --slow 200

Every client must be answered, or told that there are too many. Slow clients send
a byte now and then, over REST and gRPC's port; the good ones beside them may take
three times what they take alone. The server is `txl serve` in a process of its own.
"""

import argparse
import collections
import contextlib
import random
import socket
import tempfile
import threading
import time

import grpc
import numpy as np

from tests.measurements.measure_hostile_requests import serving_process
from tests.measurements.measure_load import resident_mebibytes
from tests.serving.byte_model import write_version
from tests.serving.hostile_requests import good_grpc, good_rest
from tests.serving.http2_frames import begun_request, more_of_message
from tests.serving.raw_client import ask_grpc, ask_rest

MAX_RATIO = 3.0
TOLD = {503, grpc.StatusCode.RESOURCE_EXHAUSTED}
ANSWERED = {200, grpc.StatusCode.OK}
_HEAD = b"POST /v1/models/bytes:predict HTTP/1.1\r\nHost: a\r\nContent-Length: "


def crowd(server, count):
    """How many clients, all at the same moment, got which answer."""
    statuses, barrier = [], threading.Barrier(count)

    def ask(number):
        draw = random.Random(number % 20)
        content = good_rest(draw) if number % 2 else good_grpc(draw)
        with grpc.insecure_channel(
            f"127.0.0.1:{server.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            barrier.wait()
            try:
                if number % 2:
                    status, _ = ask_rest(server.rest_port, content)
                else:
                    status, _ = ask_grpc(channel, content)
            except OSError as error:
                status = type(error).__name__
            statuses.append(status)

    threads = [threading.Thread(target=ask, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return collections.Counter(statuses)


def latencies(server, num_clients, num_requests):
    """Seconds that each request of some good clients took."""
    found = []

    def ask(number):
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            for step in range(num_requests):
                draw = random.Random(step % 20)
                start = time.monotonic()
                if number % 2:
                    status, _ = ask_rest(server.rest_port, good_rest(draw))
                else:
                    status, _ = ask_grpc(channel, good_grpc(draw))
                found.append(time.monotonic() - start if status in ANSWERED else np.inf)

    threads = [threading.Thread(target=ask, args=[number]) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@contextlib.contextmanager
def slow_clients(server, count, interval_seconds=0.5):
    """Clients that begin a request, and go on by a byte at a time.

    Of four, one sends a head, two a body, one a message of gRPC.
    """
    with contextlib.ExitStack() as stack:
        connections = []
        for number in range(count):
            port = server.grpc_port if number % 4 == 3 else server.rest_port
            connection = socket.create_connection(("127.0.0.1", port), timeout=30.0)
            stack.enter_context(connection)
            begun = [_HEAD, _HEAD + b"100000\r\n\r\n{", _HEAD + b"90\r\n\r\n{", begun_request(1000)]
            connection.sendall(begun[number % 4])
            connections.append(connection)
        ends = threading.Event()

        def go_on():
            while not ends.wait(interval_seconds):
                for number, connection in enumerate(connections):
                    with contextlib.suppress(OSError):  # it may have been ended
                        connection.sendall(b"1" if number % 4 < 3 else more_of_message(b"1"))

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield connections
        finally:
            ends.set()
            thread.join()


def unfinished_bodies(process, server, count=8, num_bytes=100 << 20):
    """By how many mebibytes a server grows while large bodies do not end."""
    before = resident_mebibytes(process.pid)
    head = _HEAD + str(num_bytes + 1).encode() + b"\r\n\r\n"
    block = b" " * (1 << 20)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", server.rest_port), timeout=30.0)
            stack.enter_context(connection)
            with contextlib.suppress(OSError):  # it may be refused
                connection.sendall(head)
                for _ in range(num_bytes // len(block)):
                    connection.sendall(block)
        during = resident_mebibytes(process.pid)
    return during - before


def main():
    """Prints the figures; fails where one is beyond its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200, help="at once")
    parser.add_argument("--slow", type=int, default=200, help="beside ten good ones")
    parser.add_argument("--requests", type=int, default=100, help="of each good client")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_version(folder, 1)
        with serving_process(folder) as (process, server):
            is_good = measure(process, server, arguments)
    raise SystemExit(0 if is_good and process.returncode == 0 else 1)


def measure(process, server, arguments):
    """Prints the figures, and says whether all are within the bars."""
    statuses = crowd(server, arguments.clients)
    print(f"{arguments.clients} clients at once: {dict(statuses)}", flush=True)
    is_good = set(statuses) <= TOLD | ANSWERED and statuses.total() == arguments.clients
    latencies(server, 10, 20)
    alone = latencies(server, 10, arguments.requests)
    with slow_clients(server, arguments.slow):
        beside = latencies(server, 10, arguments.requests)
    again = latencies(server, 10, arguments.requests)
    for name, found in (("alone", alone), ("beside slow ones", beside), ("alone again", again)):
        p50, p99 = np.percentile(found, [50, 99]) * 1000
        print(f"{len(found)} requests of 10 clients {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    ratio = np.percentile(beside, 99) / np.percentile(alone, 99)
    print(f"p99 beside {arguments.slow} slow clients: {ratio:.2f} times as long as alone")
    growth = unfinished_bodies(process, server)
    print(f"8 unfinished bodies of 100 MiB: the server grows by {growth:.0f} MiB", flush=True)
    return is_good and ratio <= MAX_RATIO and process.poll() is None


if __name__ == "__main__":
    main()
