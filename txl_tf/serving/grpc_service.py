"""The gRPC interface of TensorFlow Serving, as far as PREDICT needs it."""

import logging
from collections.abc import Callable
from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from txl_tf.serving.loaded_version import LoadedVersion
from txl_tf.serving.request_error import RequestError
from txl_tf.serving.status_code import StatusCode
from txl_tf.serving.version_watcher import VersionWatcher

_LOGGER = logging.getLogger(__name__)
_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}
# Messages travel in headers, which must stay small.
_MAX_MESSAGE_LETTERS = 2000


class GrpcService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Answers `Predict` and `GetModelMetadata`; the other calls are unimplemented.

    Args:
        model_name: str. The name of the model in requests.
        versions: `VersionWatcher`.
    """

    def __init__(self, model_name: str, versions: VersionWatcher) -> None:
        self._model_name = model_name
        self._versions = versions

    def Predict(  # noqa: N802
        self, request: predict_pb2.PredictRequest, context: grpc.ServicerContext
    ) -> predict_pb2.PredictResponse:
        """Asks a signature."""
        return _answered(lambda: self._predict(request), context)

    def GetModelMetadata(  # noqa: N802
        self, request: get_model_metadata_pb2.GetModelMetadataRequest, context: grpc.ServicerContext
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        """Says what the signatures are."""
        return _answered(lambda: self._metadata(request), context)

    def _predict(self, request: predict_pb2.PredictRequest) -> predict_pb2.PredictResponse:
        loaded = self._version_for(request.model_spec)
        name = request.model_spec.signature_name
        try:
            inputs = {key: tf.make_ndarray(proto) for key, proto in request.inputs.items()}
        except (TypeError, ValueError) as error:
            message = f"An input is no tensor: {error}"
            raise RequestError(StatusCode.INVALID_ARGUMENT, message) from error
        outputs = loaded.predict(name, inputs, request.output_filter)
        response = predict_pb2.PredictResponse()
        self._describe(response.model_spec, loaded)
        response.model_spec.signature_name = name or "serving_default"
        for key, array in outputs.items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(array))
        return response

    def _metadata(
        self, request: get_model_metadata_pb2.GetModelMetadataRequest
    ) -> get_model_metadata_pb2.GetModelMetadataResponse:
        if list(request.metadata_field) != ["signature_def"]:
            message = "metadata_field must be `signature_def`."
            raise RequestError(StatusCode.INVALID_ARGUMENT, message)
        loaded = self._version_for(request.model_spec)
        signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=loaded.signatures)
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        self._describe(response.model_spec, loaded)
        response.metadata["signature_def"].Pack(signatures)
        return response

    def _version_for(self, model_spec: Any) -> LoadedVersion:
        if model_spec.name != self._model_name or model_spec.version_label:
            asked = f"{model_spec.name} {model_spec.version_label}".strip()
            raise RequestError(StatusCode.NOT_FOUND, f"Servable not found: {asked}.")
        is_given = model_spec.HasField("version")
        return self._versions.current(model_spec.version.value if is_given else None)

    def _describe(self, model_spec: Any, loaded: LoadedVersion) -> None:
        model_spec.name = self._model_name
        model_spec.version.value = loaded.number


def _answered(function: Callable[[], Any], context: grpc.ServicerContext) -> Any:
    try:
        return function()
    except RequestError as error:
        code, message = error.code, error.message
    except Exception as error:  # told to whoever asked, and kept in the log
        _LOGGER.exception("A request failed.")
        code, message = StatusCode.INTERNAL, f"{type(error).__name__}: {error}"
    context.abort(_GRPC_CODES[code], message[:_MAX_MESSAGE_LETTERS])
    return None
