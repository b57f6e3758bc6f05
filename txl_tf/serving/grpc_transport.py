"""Requests to TensorFlow Serving over gRPC."""

import json
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from txl_tf.serving.client import PredictionError

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
        options = [
            ("grpc.max_send_message_length", _UNLIMITED),
            ("grpc.max_receive_message_length", _UNLIMITED),
            ("grpc.service_config", json.dumps({"methodConfig": [method]})),
            # By default only messages up to 256 KiB are repeated; memory is larger.
            ("grpc.per_rpc_retry_buffer_size", _LARGEST_INTEGER),
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def predict(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Calls a signature, see `Transport`."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._model_name
        request.model_spec.signature_name = signature_name
        if self._version is not None:
            request.model_spec.version.value = self._version
        for name, array in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
        try:
            response = self._stub.Predict(request, timeout=self._timeout_seconds)
            return {name: tf.make_ndarray(each) for name, each in response.outputs.items()}
        except grpc.RpcError as error:
            code, message = error.code().name, error.details() or ""
        except (ValueError, TypeError) as error:
            code, message = "INTERNAL", f"The answer has no arrays: {error}"
        raise PredictionError(code, message, server=self._server, signature=signature_name)

    def close(self) -> None:
        """Closes the connection, see `Transport`."""
        self._channel.close()
