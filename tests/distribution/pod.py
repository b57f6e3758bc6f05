"""A slice of CPU hosts: servers on loopback, as `worker_server` runs them on a real one."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.distribution.two_workers import free_ports
from tests.pipelines.txl_process import environment


class Pod:
    """Servers that run, and the value of `--tpu` for them."""

    def __init__(self, processes: list[subprocess.Popen], ports: list[int]) -> None:
        self.processes = processes
        self.ports = ports

    @property
    def tpu(self) -> str:
        return ",".join(f"grpc://localhost:{port}" for port in self.ports)


@contextlib.contextmanager
def running_pod(num_hosts: int) -> Iterator[Pod]:
    """Starts the servers of a slice, and ends them."""
    ports = free_ports(num_hosts)
    words = [sys.executable, "-m", "tests.distribution.serve_cpu", "--port"]
    processes = [
        subprocess.Popen(
            [*words, str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        for port in ports
    ]
    try:
        for process in processes:
            assert "Serving" in process.stdout.readline()
        yield Pod(processes, ports)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def start_training(pod: Pod, log: Path, *arguments: object) -> subprocess.Popen:
    """Starts `txl train` on a slice, with its output in a file."""
    words = [sys.executable, "-m", "tests.distribution.train_on_pod", *map(str, arguments)]
    with open(log, "w") as file:
        return subprocess.Popen(
            [*words, "--tpu", pod.tpu], stdout=file, stderr=file, env=environment()
        )
