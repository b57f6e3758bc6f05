"""A server on this machine, for tests and demonstrations."""

import contextlib
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, Self

import grpc

from txl_tf.machine_memory import available_bytes
from txl_tf.serving.grpc_server import GrpcArrivals, GrpcService
from txl_tf.serving.model_versions import VersionWatcher
from txl_tf.serving.request_engine import RequestEngine, ServerLimits
from txl_tf.serving.rest_server import RestService

_UNLIMITED = -1
_UNKNOWN_MEMORY_BYTES = 8 << 30
_GRACE_SECONDS = 2.0


class LoopbackServer(contextlib.AbstractContextManager):
    """Server of the highest version of an export: REST and gRPC on 127.0.0.1.

    It speaks what TensorFlow Serving speaks, on the SavedModel itself, so that
    clients can be tried without TensorFlow Serving. It keeps nothing between
    requests and joins no requests to batches. It has neither encryption nor
    access control: other machines cannot reach it. What it bears at a time is in
    `ServerLimits`.

    Args:
        folder: str. The folder of all versions.
        verify: function of the path of a version that raises an error if it is
            not complete or not what was written.
        model_name: str. Name of the model in requests.
        rest_port: int. 0 for a free port.
        grpc_port: int. 0 for a free port.
        poll_seconds: float. Time between two looks for a new version.
        limits: optional `ServerLimits`.

    Attributes:
        versions: `VersionWatcher`.
        rest_port: int. The port that REST is served on.
        grpc_port: int. The port that gRPC is served on.

    Raises:
        OSError: If a port is taken.
    """

    def __init__(
        self,
        folder: str,
        verify: Callable[[str], object],
        *,
        model_name: str = "txl",
        rest_port: int = 0,
        grpc_port: int = 0,
        poll_seconds: float = 2.0,
        limits: ServerLimits | None = None,
    ) -> None:
        limits = ServerLimits() if limits is None else limits
        self.model_name = model_name
        self.versions = VersionWatcher(folder, verify, poll_seconds=poll_seconds)
        available = available_bytes() or _UNKNOWN_MEMORY_BYTES
        self._engine = RequestEngine(self.versions, limits, int(limits.memory_fraction * available))
        self._rest = RestService(model_name, self._engine, rest_port)
        self.rest_port = self._rest.port
        self._arrivals = GrpcArrivals(
            limits.body_seconds,
            limits.max_bodies_bytes,
            lambda: self._engine.memory.lent_bytes,
        )
        self._grpc = _grpc_server(limits)
        service = GrpcService(model_name, self._engine, self._arrivals)
        self._grpc.add_generic_rpc_handlers([service.handler()])
        try:
            self.grpc_port = self._grpc.add_insecure_port(f"127.0.0.1:{grpc_port}")
        except RuntimeError as error:
            self.stop()
            raise OSError(f"Port {grpc_port} cannot be used: {error}") from error

    def start(self) -> None:
        """Loads the highest version, and answers from then on."""
        self.versions.start()
        self._grpc.start()
        self._rest.start()
        self._arrivals.start()

    def stop(self) -> bool:
        """Answers no more, and returns whether all requests that run end within seconds.

        Those that do not run on in threads that nobody waits for.
        """
        ended = self._grpc.stop(grace=_GRACE_SECONDS)
        closing = threading.Thread(target=self._rest.stop, args=[_GRACE_SECONDS], daemon=True)
        closing.start()
        self._arrivals.stop()
        all_ended = self.versions.stop(_GRACE_SECONDS)
        closing.join(2 * _GRACE_SECONDS)
        all_ended &= ended.wait(_GRACE_SECONDS) and not closing.is_alive()
        return self._engine.close(_GRACE_SECONDS / 2) and all_ended

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _grpc_server(limits: ServerLimits) -> Any:
    milliseconds = int(1000 * limits.idle_seconds)
    options = {
        "grpc.max_receive_message_length": limits.max_body_bytes,
        "grpc.max_send_message_length": _UNLIMITED,
        "grpc.so_reuseport": 0,
        # Connections that ask nothing, or whose client is gone.
        "grpc.max_connection_idle_ms": milliseconds,
        "grpc.keepalive_time_ms": milliseconds,
        "grpc.keepalive_timeout_ms": milliseconds,
        "grpc.server_handshake_timeout_ms": milliseconds,
    }
    return grpc.server(
        futures.ThreadPoolExecutor(limits.max_grpc_requests, "grpc"),
        options=list(options.items()),
        maximum_concurrent_rpcs=limits.max_grpc_requests,
    )
