"""Requests to a served model over HTTP."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import urllib3
from google.protobuf import json_format
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.json_text import parse_json
from txl_tf.serving.json_tensors import arrays_of_outputs, json_of_inputs
from txl_tf.serving.prediction_error import PredictionError
from txl_tf.serving.request_error import RequestError
from txl_tf.serving.retries import call_with_retries
from txl_tf.serving.status_code import StatusCode

_MOST_CONNECTIONS = 32
_MAX_MESSAGE_LETTERS = 2000


class RestTransport:
    """A `Transport` over REST; threads may share it.

    JSON has no form for bfloat16: models whose memory is bfloat16 on the wire
    are asked over gRPC. Nor can it tell an empty axis from several, so models
    without memory are asked over gRPC as well.

    Args:
        address: str. `http://HOST:PORT` of the server.
        model_name: str. Name of the model there.
        version: optional int. The version to insist on; by default the highest.
        timeout_seconds: float. The most time for a request with its repetitions.
        num_attempts: int. How often a server that is not there is asked.
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
        pinned = "" if version is None else f"/versions/{version}"
        self._url = f"{address.rstrip('/')}/v1/models/{model_name}{pinned}"
        self._timeout_seconds = timeout_seconds
        self._num_attempts = num_attempts
        self._pool = urllib3.PoolManager(maxsize=_MOST_CONNECTIONS, retries=False)
        self._signatures: dict[str, meta_graph_pb2.SignatureDef] | None = None

    def predict(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """As in `Transport`."""
        signatures = self.signatures()
        try:
            body = {"signature_name": signature_name, "inputs": json_of_inputs(inputs)}
        except RequestError as error:  # a type that JSON has no form for
            raise self._error(error.code, error.message, signature_name) from error
        answer = self._ask("POST", ":predict", signature_name, body)
        try:
            return arrays_of_outputs(answer.get("outputs"), signatures[signature_name])
        except (RequestError, KeyError) as error:
            self._signatures = None  # another version may be served by now
            code = getattr(error, "code", StatusCode.INTERNAL)
            code = code if code == StatusCode.UNIMPLEMENTED else StatusCode.INTERNAL
            message = f"The answer is not one of this signature: {error}"
            raise self._error(code, message, signature_name) from error

    def signatures(self) -> dict[str, meta_graph_pb2.SignatureDef]:
        """As in `Transport`. Asked once, and again after an error."""
        found = self._signatures
        if found is None:
            answer = self._ask("GET", "/metadata", "")
            try:
                definitions = answer["metadata"]["signature_def"]["signature_def"]
                found = {
                    name: json_format.ParseDict(
                        definition, meta_graph_pb2.SignatureDef(), ignore_unknown_fields=True
                    )
                    for name, definition in definitions.items()
                }
            except (LookupError, TypeError, AttributeError, json_format.ParseError) as error:
                message = f"The metadata cannot be understood: {error}"
                raise self._error(StatusCode.INTERNAL, message) from error
            self._signatures = found
        return found

    def close(self) -> None:
        """As in `Transport`."""
        self._pool.clear()

    def _ask(self, method: str, what: str, signature: str, body: Any = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body).encode()

        def ask(timeout_seconds: float) -> dict[str, Any]:
            return self._ask_once(method, what, signature, content, timeout_seconds)

        try:
            return call_with_retries(ask, self._num_attempts, self._timeout_seconds)
        except PredictionError:
            # Another version may be served by now.
            self._signatures = None
            raise

    def _ask_once(
        self, method: str, what: str, signature: str, content: bytes | None, timeout_seconds: float
    ) -> dict[str, Any]:
        try:
            response = self._pool.request(
                method,
                self._url + what,
                body=content,
                headers={"Content-Type": "application/json"},
                timeout=urllib3.Timeout(total=timeout_seconds),
            )
        except urllib3.exceptions.ConnectTimeoutError as error:
            raise self._error(StatusCode.UNAVAILABLE, str(error), signature) from error
        except urllib3.exceptions.TimeoutError as error:
            raise self._error(StatusCode.DEADLINE_EXCEEDED, str(error), signature) from error
        except urllib3.exceptions.HTTPError as error:
            raise self._error(StatusCode.UNAVAILABLE, str(error), signature) from error
        try:
            answer = parse_json(response.data)
            if response.status == 200 and isinstance(answer, dict):
                return answer
            message = str(answer["error"])[:_MAX_MESSAGE_LETTERS]
        except (ValueError, LookupError, TypeError):
            message = f"HTTP status {response.status}"
        code = StatusCode.of_http_status(response.status)
        code = StatusCode.INTERNAL if code == StatusCode.OK else code
        raise self._error(code, message, signature)

    def _error(self, code: StatusCode, message: str, signature: str = "") -> PredictionError:
        return PredictionError(code, message, server=self._url, signature=signature)
