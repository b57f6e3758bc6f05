"""Servers of an export on this machine, by name."""

import contextlib
import shutil
import socket
import subprocess
import time
from typing import NamedTuple

from txl_tf.export.export_verification import verify_export
from txl_tf.serving import GrpcTransport, LoopbackServer, RestTransport
from txl_tf.serving.errors import PredictionError

MODEL_NAME = "bytes"
MODEL_SERVER = "tensorflow_model_server"
# TensorFlow Serving itself takes part wherever it is installed.
SERVERS = ["loopback", *([MODEL_SERVER] if shutil.which(MODEL_SERVER) else [])]
TRANSPORTS = ["rest", "grpc"]


class Address(NamedTuple):
    """Ports on this machine."""

    rest_port: int
    grpc_port: int

    def transport(self, name, **settings):
        """A new transport; the caller closes it."""
        if name == "rest":
            return RestTransport(f"http://127.0.0.1:{self.rest_port}", MODEL_NAME, **settings)
        return GrpcTransport(f"127.0.0.1:{self.grpc_port}", MODEL_NAME, **settings)


@contextlib.contextmanager
def running_server(name, folder):
    """Serves a folder of versions for as long as the `with` block takes."""
    run = _loopback if name == "loopback" else _model_server
    with run(str(folder)) as address:
        yield address


@contextlib.contextmanager
def _loopback(folder):
    with LoopbackServer(folder, verify_export, model_name=MODEL_NAME, poll_seconds=0.05) as server:
        yield Address(server.rest_port, server.grpc_port)


@contextlib.contextmanager
def _model_server(folder):
    address = Address(_free_port(), _free_port())
    arguments = [
        f"--model_base_path={folder}",
        f"--model_name={MODEL_NAME}",
        f"--rest_api_port={address.rest_port}",
        f"--port={address.grpc_port}",
        "--file_system_poll_wait_seconds=1",
    ]
    with subprocess.Popen([MODEL_SERVER, *arguments]) as process:
        try:
            _wait_for(address)
            yield address
        finally:
            process.terminate()


def _wait_for(address, seconds=60.0):
    deadline = time.monotonic() + seconds
    while True:
        transport = address.transport("grpc", num_attempts=1)
        try:
            transport.signatures()
            return
        except PredictionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        finally:
            transport.close()


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
