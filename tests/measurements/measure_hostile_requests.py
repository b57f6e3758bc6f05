"""Sends thousands of mutated requests to one server, and prints what became of it.

    python -m tests.measurements.measure_hostile_requests --count 20000

One request in ten is good, and must be answered as it was before. The server is
`txl serve` in a process of its own, with the tiny model of the tests.
"""

import argparse
import collections
import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from tensorflow_serving.apis import predict_pb2

from tests.measurements.measure_load import address_in, resident_mebibytes
from tests.serving import hostile_requests
from tests.serving.byte_model import write_version
from tests.serving.raw_client import GRPC_REFUSALS, HTTP_REFUSALS, ask_grpc, ask_rest
from tests.serving.servers import MODEL_NAME

NUM_CLIENTS = 4
NUM_GOOD = 20
NUM_AT_A_TIME = 500
MAX_SECONDS = 10.0
MAX_GROWTH_MEBIBYTES = 50.0


class Client:
    """One thread that sends a part of the requests, which were drawn before."""

    def __init__(self, server, expected, requests):
        self.server = server
        self.expected = expected
        self.requests = requests
        self.counts = collections.Counter()
        self.wrong = []
        self.slowest = (0.0, None)

    def run(self):
        with grpc.insecure_channel(f"127.0.0.1:{self.server.grpc_port}") as channel:
            for number, content in self.requests:
                start = time.monotonic()
                if number % 10 == 0:
                    self._ask_good(channel, number)
                else:
                    self._ask_hostile(channel, number, content)
                self.slowest = max(self.slowest, (time.monotonic() - start, number))

    def _ask_good(self, channel, number):
        kind, seed = ("rest", "grpc")[number // 10 % 2], number % NUM_GOOD
        if answer_to_good(self.server, channel, kind, seed) == self.expected[kind, seed]:
            self.counts["good"] += 1
        else:
            self.wrong.append(f"request {number}: another answer to a good request")

    def _ask_hostile(self, channel, number, content):
        if number % 2:
            status, _ = ask_rest(self.server.rest_port, content)
            # A head that never ended is no request.
            is_cut = status is None and b"\r\n\r\n" not in content
            is_fine = status in {200, *HTTP_REFUSALS} or is_cut
        else:
            status, _ = ask_grpc(channel, content)
            is_fine = status == grpc.StatusCode.OK or status in GRPC_REFUSALS
            status = status.name
        self.counts[status] += 1
        if not is_fine:
            self.wrong.append(f"request {number}: {status}")


def drawn_request(number):
    """The number of a request, and its bytes where it is a hostile one."""
    if number % 10 == 0:
        return number, None
    draw = random.Random(number)
    kind = hostile_requests.hostile_rest if number % 2 else hostile_requests.hostile_grpc
    return number, kind(draw)


def answer_to_good(server, channel, kind, seed):
    """What a good request is answered, in a form that can be compared."""
    draw = random.Random(seed)
    if kind == "rest":
        return ask_rest(server.rest_port, hostile_requests.good_rest(draw))
    code, content = ask_grpc(channel, hostile_requests.good_grpc(draw))
    if code != grpc.StatusCode.OK:
        return code, content
    message = predict_pb2.PredictResponse.FromString(content)
    return code, message.SerializeToString(deterministic=True)


def send(server, expected, numbers):
    """Sends the requests of some numbers, and returns the clients.

    Drawing large ones would hold up the threads that wait for answers.
    """
    clients = []
    for first in range(0, len(numbers), NUM_AT_A_TIME):
        requests = [drawn_request(number) for number in numbers[first : first + NUM_AT_A_TIME]]
        some = [
            Client(server, expected, requests[part::NUM_CLIENTS]) for part in range(NUM_CLIENTS)
        ]
        threads = [threading.Thread(target=client.run) for client in some]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for client in some:
            client.requests = None
        clients += some
    return clients


def expected_answers(server):
    """The answers to good requests, while nobody else asks."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        return {
            (kind, seed): answer_to_good(server, channel, kind, seed)
            for kind in ("rest", "grpc")
            for seed in range(NUM_GOOD)
        }


@contextlib.contextmanager
def serving_process(folder):
    """`txl serve` of a folder: the process, and its ports."""
    command = [sys.executable, "-m", "pipelines.serve", "--export", str(folder)]
    command += ["--name", MODEL_NAME, "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, address_in(process.stdout)
        finally:
            process.terminate()


def main():
    """Prints the figures; fails where one is beyond its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_version(folder, 1)
        with serving_process(folder) as (process, server):
            failures = measure(process, server, arguments.first, arguments.count)
        failures += [f"exit code {process.returncode}"] if process.returncode else []
    print("\n".join(failures[:20]))
    raise SystemExit(1 if failures else 0)


def measure(process, server, first, count):
    """Sends all requests, prints, and returns what is wrong."""
    expected = expected_answers(server)
    # The same kinds of requests with other numbers, until everything was used once.
    send(server, expected, range(first + count, first + count + max(count // 10, 200)))
    before = resident_mebibytes(process.pid)
    start = time.monotonic()
    clients = send(server, expected, range(first, first + count))
    seconds = time.monotonic() - start
    failures = [wrong for client in clients for wrong in client.wrong]
    is_alive = process.poll() is None
    growth = resident_mebibytes(process.pid) - before if is_alive else 0.0
    counts = sum((client.counts for client in clients), collections.Counter())
    slowest, number = max(client.slowest for client in clients)
    print(f"{count} requests in {seconds:.0f} s, {counts['good']} of them good and answered well")
    print(", ".join(f"{status}: {number}" for status, number in counts.most_common()))
    print(f"crashes {int(not is_alive)}, wrong {len(failures)}")
    print(f"slowest {slowest:.2f} s, request {number}")
    print(f"memory after warming up {before:.1f} MiB, growth {growth:.1f} MiB", flush=True)
    failures += [] if is_alive else ["the server ended"]
    failures += ["memory grew"] if growth > MAX_GROWTH_MEBIBYTES else []
    failures += ["too slow"] if slowest > MAX_SECONDS else []
    return failures


if __name__ == "__main__":
    main()
