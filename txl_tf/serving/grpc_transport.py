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

from txl_tf.serving.rest_transport import PredictionError, Signatures, check_outputs

_SERVICE = "tensorflow.serving.PredictionService"
_UNLIMITED = -1
_LARGEST_INTEGER = 2**31 - 1


class GrpcTransport:
    """A `Transport` over gRPC without encryption; threads may share it.

    Args:
        address: str. `HOST:PORT` of the server.
        model_name: str. Name of the model there.
        version: optional int. Version of the model; the highest by default.
        timeout_seconds: float. Most time of a request with its repetitions.
        num_attempts: int. Attempts to reach a server; gRPC makes 5 at most.

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
        self._signatures: Signatures | None = None

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
            arrays = {name: tf.make_ndarray(each) for name, each in response.outputs.items()}
            check_outputs(arrays, definition)
        except (ValueError, TypeError) as error:
            message = f"The answer does not fit the signature: {error}"
            raise self._error("INTERNAL", message, signature_name) from error
        return arrays

    def signatures(self) -> Signatures:
        """Returns the signatures, read once and again after an error, see `Transport`."""
        if self._signatures is None:
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
                raise self._error("INTERNAL", "The metadata cannot be read.")
            self._signatures = dict(definitions.signature_def)
        return self._signatures

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
            code = error.code().name
            raise self._error(code, error.details() or "", signature) from error

    def _error(self, code: str, message: str, signature: str = "") -> PredictionError:
        return PredictionError(code, message, server=self._server, signature=signature)


def _options(num_attempts: int) -> list[tuple[str, int | str]]:
    """Returns options of a channel that repeats requests to a server that is not ready."""
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
