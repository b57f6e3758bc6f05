"""The gRPC interface of TensorFlow Serving, as far as PREDICT needs it."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
import tensorflow as tf
from google.protobuf.message import DecodeError, Message
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

from txl_tf.serving.grpc_arrivals import GrpcArrivals
from txl_tf.serving.loaded_version import LoadedVersion
from txl_tf.serving.proto_tensors import arrays_of_protos, shapes_of_protos
from txl_tf.serving.request_engine import RequestEngine
from txl_tf.serving.request_error import RequestError
from txl_tf.serving.request_shapes import invalid, require_names
from txl_tf.serving.status_code import StatusCode

_LOGGER = logging.getLogger(__name__)
_SERVICE = "tensorflow.serving.PredictionService"
_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}
# Messages travel in headers, which must stay small.
_MAX_MESSAGE_LETTERS = 2000
_MAX_SHOWN = 200

_Request = TypeVar("_Request", bound=Message)


class GrpcService:
    """Answers `Predict` and `GetModelMetadata`; the other calls are unimplemented.

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
        """What a `grpc.Server` takes."""
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
            context.abort(_GRPC_CODES[code], words[:_MAX_MESSAGE_LETTERS])
            raise AssertionError

        return grpc.stream_unary_rpc_method_handler(answer)

    def _predict(self, request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
        loaded = self._version_for(request.model_spec)
        name = request.model_spec.signature_name
        signature = loaded.signature(name)
        require_names(request.inputs, signature)
        shapes = shapes_of_protos(request.inputs, signature.inputs)

        def compute() -> predict_pb2.PredictResponse:
            inputs = arrays_of_protos(request.inputs, signature.inputs)
            outputs = loaded.predict(name, inputs, request.output_filter)
            response = predict_pb2.PredictResponse()
            self._describe(response.model_spec, loaded)
            response.model_spec.signature_name = name or "serving_default"
            for key, array in outputs.items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(array))
            return response

        return self._engine.within_memory(loaded, name, shapes, compute)

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
