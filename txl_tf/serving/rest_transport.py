"""Interface of the client's transports, the one over REST, and the check of answers."""

import base64
import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
import urllib3
from google.protobuf import json_format
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.storage.untrusted_files import parse_json

_FIRST_WAIT_SECONDS = 0.1
_MOST_CONNECTIONS = 32
_MAX_MESSAGE_LETTERS = 2000

# The likeliest code of gRPC for a status of HTTP.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}

Signatures = dict[str, meta_graph_pb2.SignatureDef]


class PredictionError(Exception):
    """Failed request: the server refused it or did not answer.

    Args:
        code: str. Name of the status code of gRPC, such as `"INVALID_ARGUMENT"`.
        message: str. Message of the server.
        server: str. Address and model.
        signature: str. Signature of the request; empty for metadata.
    """

    def __init__(self, code: str, message: str, *, server: str, signature: str = "") -> None:
        self.code = code
        self.message = message
        asked = f", signature `{signature}`" if signature else ""
        super().__init__(f"{code} from {server}{asked}: {message}")


class Transport(Protocol):
    """Connection to the signatures of one model; threads may share it."""

    def predict(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Calls a signature and returns its outputs, of the signature's types and sizes.

        Object arrays of bytes are strings. Raises PredictionError if the server refuses, or does
        not answer in time.
        """
        ...

    def signatures(self) -> Signatures:
        """Returns the signatures of the model, by name; errors of `predict`."""
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...


class RestTransport:
    """A `Transport` over REST; threads may share it.

    JSON has no bfloat16 and no shape of an empty array: models whose memory is bfloat16, or
    that have none, are asked over gRPC.

    Args:
        address: str. `http://HOST:PORT` of the server.
        model_name: str. Name of the model there.
        version: optional int. Version of the model; the highest by default.
        timeout_seconds: float. Most time of a request with its repetitions.
        num_attempts: int. Attempts to reach a server.

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
        if num_attempts < 1:
            raise ValueError(f"`num_attempts` must be positive. Received: {num_attempts}")
        pinned = "" if version is None else f"/versions/{version}"
        self._url = f"{address.rstrip('/')}/v1/models/{model_name}{pinned}"
        self._timeout_seconds = timeout_seconds
        self._num_attempts = num_attempts
        self._pool = urllib3.PoolManager(maxsize=_MOST_CONNECTIONS, retries=False)
        self._signatures: Signatures | None = None

    def predict(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Calls a signature, see `Transport`."""
        definition = self.signatures().get(signature_name, meta_graph_pb2.SignatureDef())
        if any(each.dtype.kind not in "biufO" for each in inputs.values()):
            message = "JSON has no form for bfloat16; use GrpcTransport."
            raise self._error("UNIMPLEMENTED", message, signature_name)
        values = {name: _json_of(array.tolist()) for name, array in inputs.items()}
        body = {"signature_name": signature_name, "inputs": values}
        outputs: Any = self._ask("POST", ":predict", signature_name, body).get("outputs")
        if len(definition.outputs) == 1:  # stands without its name
            outputs = {next(iter(definition.outputs)): outputs}
        try:
            arrays = {
                name: _array(value, definition.outputs[name].dtype)
                for name, value in outputs.items()
            }
            check_outputs(arrays, definition)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            message = f"The answer does not fit the signature: {error}"
            raise self._error("INTERNAL", message, signature_name) from error
        return arrays

    def signatures(self) -> Signatures:
        """Returns the signatures, read once and again after an error, see `Transport`."""
        if self._signatures is None:
            answer = self._ask("GET", "/metadata", "")
            try:
                definitions = answer["metadata"]["signature_def"]["signature_def"]
                self._signatures = {
                    name: json_format.ParseDict(
                        definition, meta_graph_pb2.SignatureDef(), ignore_unknown_fields=True
                    )
                    for name, definition in definitions.items()
                }
            except (LookupError, TypeError, AttributeError, json_format.ParseError) as error:
                message = f"The metadata cannot be read: {error}"
                raise self._error("INTERNAL", message) from error
        return self._signatures

    def close(self) -> None:
        """Closes the connections, see `Transport`."""
        self._pool.clear()

    def _ask(self, method: str, what: str, signature: str, body: Any = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body).encode()
        # `urllib3.Retry` gives every attempt the whole time; here they share one deadline.
        deadline, wait_seconds = time.monotonic() + self._timeout_seconds, _FIRST_WAIT_SECONDS
        for attempts_left in reversed(range(self._num_attempts)):
            left = max(deadline - time.monotonic(), 0.001)
            try:
                return self._ask_once(method, what, signature, content, left)
            except PredictionError as error:
                self._signatures = None  # another version may be served by now
                is_last = not attempts_left or time.monotonic() + wait_seconds >= deadline
                # A server keeps nothing, so every request may be repeated.
                if error.code != "UNAVAILABLE" or is_last:
                    raise
            time.sleep(wait_seconds)
            wait_seconds *= 2
        raise AssertionError

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
        except urllib3.exceptions.HTTPError as error:
            is_late = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            code = "DEADLINE_EXCEEDED" if is_late else "UNAVAILABLE"
            raise self._error(code, str(error), signature) from error
        try:
            answer = parse_json(response.data)
            if response.status == 200 and isinstance(answer, dict):
                return answer
            message = str(answer["error"])[:_MAX_MESSAGE_LETTERS]
        except (ValueError, LookupError, TypeError):
            message = f"HTTP status {response.status}"
        code = _CODES.get(response.status, "UNKNOWN")
        raise self._error(code, message, signature)

    def _error(self, code: str, message: str, signature: str = "") -> PredictionError:
        return PredictionError(code, message, server=self._url, signature=signature)


def _json_of(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_of(each) for each in value]
    return {"b64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _array(value: Any, dtype: int) -> np.ndarray:
    """Returns nested lists as an array; names in `_bytes` are base64, other texts UTF-8."""
    kind = tf.as_dtype(dtype)
    if kind == tf.bfloat16:
        raise ValueError("JSON has no form for bfloat16; use GrpcTransport.")
    return np.array(_decoded(value), object if kind == tf.string else kind.as_numpy_dtype)


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    if isinstance(value, dict):
        return base64.b64decode(value["b64"], validate=True)
    return value.encode() if isinstance(value, str) else value


def check_outputs(
    arrays: Mapping[str, np.ndarray], definition: meta_graph_pb2.SignatureDef
) -> None:
    """Refuses outputs that are not of a signature, before a session keeps them as memory.

    Raises:
        ValueError: If a name, type, size or number is wrong.
    """
    if set(arrays) != set(definition.outputs):
        raise ValueError(f"expected {sorted(definition.outputs)}, received {sorted(arrays)[:10]}")
    for name, array in arrays.items():
        info = definition.outputs[name]
        expected = tf.TensorShape(info.tensor_shape)
        if not expected.is_compatible_with(array.shape):
            raise ValueError(f"{name} has shape {array.shape}, expected {expected}")
        is_text = tf.as_dtype(info.dtype) == tf.string
        if is_text and not all(isinstance(each, bytes) for each in array.ravel()):
            raise ValueError(f"{name} has values that are not strings")
        if not is_text and tf.as_dtype(info.dtype) != tf.as_dtype(array.dtype):
            raise ValueError(f"{name} is of type {array.dtype}")
        if not is_text and not np.isfinite(array).all():
            raise ValueError(f"{name} has numbers that are not finite")
