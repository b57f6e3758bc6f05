"""gRPC interface of the server, with a limit of requests in progress."""

import contextlib
import functools
import itertools
import logging
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
import tensorflow as tf
from google.protobuf.message import DecodeError, Message
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

from txl_tf.serving.errors import RequestError, StatusCode
from txl_tf.serving.model_versions import DEFAULT_SIGNATURE, LoadedVersion
from txl_tf.serving.request_engine import RequestEngine
from txl_tf.serving.request_shapes import (
    arrays_of_protos,
    inputs_explained,
    invalid,
    require_names,
    shapes_of_protos,
)

_STATUS = Path("/proc/self/statm")
_LOOK_SECONDS = 0.25
_SLOW_SECONDS = 1.0


class _Arrival(NamedTuple):
    start: float
    cancel: Callable[[], object]


class GrpcArrivals:
    """Watch on gRPC requests from their first to their last byte.

    gRPC counts neither the time nor the bytes of a message that is under way.
    Messages that take longer than a second are ended before their time where the
    memory of the process has grown too much since there were none.

    Args:
        body_seconds: float. The most time for a message.
        max_bodies_bytes: int. How much the memory may grow.
        lent_bytes: function that returns what is lent to requests that run.
    """

    def __init__(
        self, body_seconds: float, max_bodies_bytes: int, lent_bytes: Callable[[], int]
    ) -> None:
        self._body_seconds = body_seconds
        self._max_bodies_bytes = max_bodies_bytes
        self._lent_bytes = lent_bytes
        self._arrivals: dict[int, _Arrival] = {}
        self._numbers = itertools.count()
        self._before = 0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="arrivals", daemon=True)

    def start(self) -> None:
        """Starts the watch."""
        self._before = _resident_bytes()
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._is_stopped.set()

    @contextlib.contextmanager
    def arriving(self, cancel: Callable[[], object]) -> Iterator[None]:
        """Watches one request, which `cancel` ends, as long as the `with` block takes."""
        number = next(self._numbers)
        self._arrivals[number] = _Arrival(time.monotonic(), cancel)
        try:
            yield
        finally:
            del self._arrivals[number]

    def _watch(self) -> None:
        while not self._is_stopped.wait(_LOOK_SECONDS):
            now = time.monotonic()
            slow = [
                each for each in self._arrivals.copy().values() if now - each.start > _SLOW_SECONDS
            ]
            if not slow:
                self._before = _resident_bytes()
                continue
            growth = _resident_bytes() - self._before - self._lent_bytes()
            for each in slow:
                is_late = now - each.start > self._body_seconds
                if is_late or growth > self._max_bodies_bytes:
                    each.cancel()


def _resident_bytes() -> int:
    try:
        return int(_STATUS.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


_LOGGER = logging.getLogger(__name__)
_SERVICE = "tensorflow.serving.PredictionService"
# Messages travel in headers, which must stay small.
_MAX_MESSAGE_LETTERS = 2000
_MAX_SHOWN = 200

_Request = TypeVar("_Request", bound=Message)


class GrpcService:
    """gRPC service with `Predict` and `GetModelMetadata`.

    Messages are taken as bytes, and as streams of one message, so that what is
    malformed is refused here, and what does not arrive can be ended. On the wire
    it is the same.

    Args:
        model_name: str. The name of the model in requests.
        engine: `RequestEngine`.
        arrivals: `GrpcArrivals`.
    """

    def __init__(self, model_name: str, engine: RequestEngine, arrivals: GrpcArrivals) -> None:
        self._model_name = model_name
        self._engine = engine
        self._arrivals = arrivals

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the handler for `grpc.Server`."""
        calls = {
            "Predict": self._call(predict_pb2.PredictRequest, self._predict),
            "GetModelMetadata": self._call(
                get_model_metadata_pb2.GetModelMetadataRequest, self._metadata
            ),
        }
        return grpc.method_handlers_generic_handler(_SERVICE, calls)

    def _call(
        self, message: type[_Request], function: Callable[[_Request], Message]
    ) -> grpc.RpcMethodHandler:
        def answer(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            with self._arrivals.arriving(context.cancel):
                content = next(requests, None)
            try:
                if content is None:
                    raise invalid("There is no message.")
                compute = self._engine.submit(lambda: function(_decoded(message, content)))
                return compute.result().SerializeToString()
            except RequestError as error:
                code, words = error.code, error.message
            except Exception as error:  # told to whoever asked, and kept in the log
                _LOGGER.exception("A request failed.")
                code, words = StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
            context.abort(grpc.StatusCode[code.name], words[:_MAX_MESSAGE_LETTERS])
            raise AssertionError

        return grpc.stream_unary_rpc_method_handler(answer)

    def _predict(self, request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
        loaded = self._version_for(request.model_spec)
        name = request.model_spec.signature_name
        signature = loaded.signature(name)
        explained = functools.partial(inputs_explained, name or DEFAULT_SIGNATURE, signature)
        with explained():
            require_names(request.inputs, signature)
            shapes = shapes_of_protos(request.inputs, signature.inputs)
        texts = (text for proto in request.inputs.values() for text in proto.string_val)

        def compute() -> predict_pb2.PredictResponse:
            with explained():
                inputs = arrays_of_protos(request.inputs, signature.inputs)
            outputs = loaded.predict(name, inputs, request.output_filter)
            response = predict_pb2.PredictResponse()
            self._describe(response.model_spec, loaded)
            response.model_spec.signature_name = name or DEFAULT_SIGNATURE
            for key, array in outputs.items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(array))
            return response

        longest = max(map(len, texts), default=0)
        return self._engine.within_memory(loaded, name, shapes, compute, text_bytes=longest)

    def _metadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        if list(request.metadata_field) != ["signature_def"]:
            raise invalid("metadata_field must be `signature_def`.")
        loaded = self._version_for(request.model_spec)
        signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=loaded.signatures)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        self._describe(response.model_spec, loaded)
        response.metadata["signature_def"].Pack(signatures)
        return response

    def _version_for(self, model_spec: Any) -> LoadedVersion:
        if model_spec.name != self._model_name or model_spec.version_label:
            asked = f"{model_spec.name} {model_spec.version_label}".strip()[:_MAX_SHOWN]
            raise RequestError(StatusCode.NOT_FOUND, f"Servable not found: {asked}.")
        is_given = model_spec.HasField("version")
        return self._engine.versions.current(model_spec.version.value if is_given else None)

    def _describe(self, model_spec: Any, loaded: LoadedVersion) -> None:
        model_spec.name = self._model_name
        model_spec.version.value = loaded.number


def _decoded(message: type[_Request], content: bytes) -> _Request:
    try:
        return message.FromString(content)
    except DecodeError as error:
        raise invalid(f"The message is no {message.DESCRIPTOR.name}.") from error
