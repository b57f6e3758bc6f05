"""Asks a server from several clients for minutes, and prints how it took it.

    python -m tests.measurements.measure_load --clients 8 --seconds 300

The server is `txl serve` in a process of its own. Half of the clients ask over
REST, half over gRPC; each has its own session, which it begins anew from time
to time. Without `--export` the model is the tiny one of the tests.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

from tests.serving.byte_model import write_version
from tests.serving.servers import MODEL_NAME, Address
from txl_tf.serving import PredictionError, SamplingSettings, ServingSession

STEPS_PER_TEXT = 20
NUM_SAMPLES = 10


class Client:
    """One thread that asks again and again."""

    def __init__(self, number, server, num_tokens):
        self.kind = "rest" if number % 2 else "grpc"
        self.latencies = []
        self.errors = []
        self._number = number
        self._transport = server.transport(self.kind)
        self._num_tokens = num_tokens

    def run(self, deadline):
        """Asks until the time is over."""
        step, session = 0, ServingSession(self._transport)
        while time.monotonic() < deadline:
            if step % STEPS_PER_TEXT == 0:
                session = ServingSession(self._transport)
            settings = SamplingSettings(seed=step)
            start = time.monotonic()
            try:
                session.generate(self._num_tokens, [self._number, step % 256], settings)
            except PredictionError as error:
                self.errors.append(str(error))
            self.latencies.append(time.monotonic() - start)
            step += 1
        self._transport.close()


def main():
    """Prints the figures; fails where a request failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--tokens", type=int, default=8, help="written per request")
    parser.add_argument("--export", metavar="DIR", help="folder of all versions")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.export is None:
            write_version(folder, 1)
        command = ["--export", arguments.export or folder, "--name", MODEL_NAME]
        command += ["--port", "0", "--grpc-port", "0"]
        with subprocess.Popen(
            [sys.executable, "-m", "pipelines.serve", *command], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                num_errors = measure(process, arguments)
            finally:
                process.terminate()
    raise SystemExit(1 if num_errors else 0)


def measure(process, arguments):
    """Runs the clients against a server, and counts what failed."""
    server = address_in(process.stdout)
    clients = [Client(number, server, arguments.tokens) for number in range(arguments.clients)]
    deadline = time.monotonic() + arguments.seconds
    threads = [threading.Thread(target=client.run, args=[deadline]) for client in clients]
    for thread in threads:
        thread.start()
    for sample in range(NUM_SAMPLES):
        time.sleep(arguments.seconds / NUM_SAMPLES)
        seconds = (sample + 1) * arguments.seconds / NUM_SAMPLES
        print(f"{seconds:.0f} s: server has {resident_mebibytes(process.pid):.1f} MiB", flush=True)
    for thread in threads:
        thread.join()
    for kind in ("rest", "grpc"):
        of_kind = [client.latencies for client in clients if client.kind == kind]
        if of_kind:
            p50, p99 = np.percentile(np.concatenate(of_kind), [50, 99]) * 1000
            print(f"{kind}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    errors = [error for client in clients for error in client.errors]
    num_requests = sum(len(client.latencies) for client in clients)
    speed = (num_requests - len(errors)) * arguments.tokens / arguments.seconds
    print(f"{num_requests} requests, {len(errors)} errors, {speed:.0f} tokens/s")
    print("\n".join(errors[:5]))
    return len(errors)


def address_in(lines):
    """The ports that `txl serve` prints."""
    ports = {}
    for line in lines:
        match = re.match(r"(REST|gRPC): .*127\.0\.0\.1:(\d+)", line)
        if match:
            ports[match[1]] = int(match[2])
        if len(ports) == 2:
            return Address(ports["REST"], ports["gRPC"])
    raise RuntimeError("The server ended before it answered.")


def resident_mebibytes(process_id):
    """Memory of a process that is in use now."""
    with open(f"/proc/{process_id}/status") as status:
        [line] = [line for line in status if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
