"""A server on this machine, for tests and demonstrations."""

import threading
from collections.abc import Callable
from concurrent import futures
from types import TracebackType
from typing import Self

import grpc
from tensorflow_serving.apis import prediction_service_pb2_grpc

from txl_tf.serving.grpc_service import GrpcService
from txl_tf.serving.rest_service import RestService
from txl_tf.serving.version_watcher import VersionWatcher

_GRPC_THREADS = 16
_UNLIMITED = -1


class LoopbackServer:
    """Serves the highest version of an export over REST and gRPC on 127.0.0.1.

    It speaks what TensorFlow Serving speaks, on the SavedModel itself, so that
    clients can be tried without TensorFlow Serving. It keeps nothing between
    requests and joins no requests to batches. It has neither encryption nor
    access control: other machines cannot reach it.

    Args:
        folder: str. The folder of all versions.
        verify: function of the path of a version that raises JobError if it is
            not complete or not what was written.
        model_name: str. Name of the model in requests.
        rest_port: int. 0 for a free port.
        grpc_port: int. 0 for a free port.
        poll_seconds: float. Time between two looks for a new version.

    Attributes:
        model_name: as given.
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
    ) -> None:
        self.model_name = model_name
        self.versions = VersionWatcher(folder, verify, poll_seconds=poll_seconds)
        self._rest = RestService(model_name, self.versions, rest_port)
        self.rest_port = int(self._rest.server_address[1])
        lengths = ("grpc.max_send_message_length", "grpc.max_receive_message_length")
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(_GRPC_THREADS),
            options=[*((name, _UNLIMITED) for name in lengths), ("grpc.so_reuseport", 0)],
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
            GrpcService(model_name, self.versions), self._grpc
        )
        try:
            self.grpc_port = self._grpc.add_insecure_port(f"127.0.0.1:{grpc_port}")
        except RuntimeError as error:
            self._rest.server_close()
            raise OSError(f"Port {grpc_port} cannot be used: {error}") from error
        self._thread = threading.Thread(target=self._rest.serve_forever, daemon=True)

    def start(self) -> None:
        """Loads the highest version, and answers from then on."""
        self.versions.start()
        self._grpc.start()
        self._thread.start()

    def stop(self) -> None:
        """Lets requests that are running end, and answers no more."""
        self.versions.stop()
        if self._thread.is_alive():
            self._rest.shutdown()
            self._thread.join()
        self._rest.server_close()
        self._grpc.stop(grace=5.0).wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
