"""Requests to a served model over gRPC."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from txl_tf.serving.errors import PredictionError, RequestError, StatusCode
from txl_tf.serving.request_shapes import arrays_of_protos, invalid

_SERVICE = "tensorflow.serving.PredictionService"
_UNLIMITED = -1
_LARGEST_INTEGER = 2**31 - 1
_MAX_SHOWN = 10


class GrpcTransport:
    """A `Transport` over gRPC without encryption; threads may share it.

    Args:
        address: str. `HOST:PORT` of the server.
        model_name: str. Name of the model there.
        version: optional int. The version to insist on; by default the highest.
        timeout_seconds: float. The most time for a request with its repetitions.
        num_attempts: int. How often a server that is not there is asked; gRPC
            takes every number above 5 for 5.

    Raises:
        ValueError: If `num_attempts` is not positive.
    """

    def __init__(
        self,
        address: str,
        model_name: str = "txl",
        *,
        version: int | None = None,
        timeout_seconds: float = 60.0,
        num_attempts: int = 4,
    ) -> None:
        self._server = f"{address}, model `{model_name}`"
        self._model_name = model_name
        self._version = version
        self._timeout_seconds = timeout_seconds
        self._channel = grpc.insecure_channel(address, options=_options(num_attempts))
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._signatures: dict[str, meta_graph_pb2.SignatureDef] | None = None

    def predict(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Calls a signature, see `Transport`."""
        request = predict_pb2.PredictRequest()
        self._describe(request.model_spec)
        request.model_spec.signature_name = signature_name
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
        response = self._ask(self._stub.Predict, request, signature_name)
        definition = self.signatures().get(signature_name, meta_graph_pb2.SignatureDef())
        try:
            if set(response.outputs) != set(definition.outputs):
                raise invalid(f"It has the outputs {sorted(response.outputs)[:_MAX_SHOWN]}.")
            return arrays_of_protos(response.outputs, definition.outputs)
        except RequestError as error:
            self._signatures = None  # another version may be served by now
            message = f"The answer is not one of this signature: {error.message}"
            raise self._error(StatusCode.INTERNAL, message, signature_name) from error

    def signatures(self) -> dict[str, meta_graph_pb2.SignatureDef]:
        """Returns the signatures, asked once and again after an error, see `Transport`."""
        found = self._signatures
        if found is None:
            request = get_model_metadata_pb2.GetModelMetadataRequest()
            self._describe(request.model_spec)
            request.metadata_field.append("signature_def")
            response = self._ask(self._stub.GetModelMetadata, request, "")
            definitions = get_model_metadata_pb2.SignatureDefMap()
            try:
                is_there = response.metadata["signature_def"].Unpack(definitions)
            except DecodeError:
                is_there = False
            if not is_there:
                raise self._error(StatusCode.INTERNAL, "The metadata cannot be understood.")
            self._signatures = found = dict(definitions.signature_def)
        return found

    def close(self) -> None:
        """Closes the connection, see `Transport`."""
        self._channel.close()

    def _describe(self, model_spec: Any) -> None:
        model_spec.name = self._model_name
        if self._version is not None:
            model_spec.version.value = self._version

    def _ask(self, call: Callable[..., Any], request: Any, signature: str) -> Any:
        try:
            return call(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            self._signatures = None  # another version may be served by now
            code = StatusCode[error.code().name]
            raise self._error(code, error.details() or "", signature) from error

    def _error(self, code: StatusCode, message: str, signature: str = "") -> PredictionError:
        return PredictionError(code, message, server=self._server, signature=signature)


def _options(num_attempts: int) -> list[tuple[str, int | str]]:
    """Returns the options of a channel that repeats requests within their deadline.

    Every request may be repeated, because a server keeps nothing. Only UNAVAILABLE is:
    what was refused once is refused again, and a server that took too long needs no
    second request.
    """
    if num_attempts < 1:
        raise ValueError(f"`num_attempts` must be positive. Received: {num_attempts}")
    policy = {
        "maxAttempts": num_attempts,
        "initialBackoff": "0.1s",
        "maxBackoff": "10s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
    method: dict[str, Any] = {"name": [{"service": _SERVICE}]}
    if num_attempts > 1:  # a policy must have two attempts at least
        method["retryPolicy"] = policy
    return [
        ("grpc.max_send_message_length", _UNLIMITED),
        ("grpc.max_receive_message_length", _UNLIMITED),
        ("grpc.service_config", json.dumps({"methodConfig": [method]})),
        # By default only messages up to 256 KiB are repeated; memory is larger.
        ("grpc.per_rpc_retry_buffer_size", _LARGEST_INTEGER),
    ]
