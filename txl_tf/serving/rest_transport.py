"""Transport interface of the client, and its implementation over HTTP with retries.

Answers are checked: a session would otherwise keep whatever a server says as its
memory, and send it back for the rest of the text.
"""

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import urllib3
from google.protobuf import json_format
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.serving.errors import PredictionError, RequestError, StatusCode
from txl_tf.serving.json_tensors import arrays_of_outputs, json_of_inputs
from txl_tf.storage.untrusted_files import parse_json

_FIRST_WAIT_SECONDS = 0.1
_MOST_CONNECTIONS = 32
_MAX_MESSAGE_LETTERS = 2000


class Transport(Protocol):
    """Connection to the signatures of one model; threads may share it."""

    def predict(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Calls a signature.

        Args:
            signature_name: str. Name of the signature.
            inputs: dict of input name to array of the type that the signature
                takes; object arrays of bytes for strings.

        Returns:
            Dict of output name to array.

        Raises:
            PredictionError: If the server refuses, or does not answer in time.
        """
        ...

    def signatures(self) -> dict[str, meta_graph_pb2.SignatureDef]:
        """Returns the signatures of the model, by name.

        Raises:
            PredictionError: If the server refuses, or does not answer in time.
        """
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...


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
        self._signatures: dict[str, meta_graph_pb2.SignatureDef] | None = None

    def predict(
        self, signature_name: str, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Calls a signature, see `Transport`."""
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
        """Returns the signatures, asked once and again after an error, see `Transport`."""
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
        """Closes the connections, see `Transport`."""
        self._pool.clear()

    def _ask(self, method: str, what: str, signature: str, body: Any = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body).encode()

        # `urllib3.Retry` gives every attempt the whole time; here they share one deadline.
        deadline = time.monotonic() + self._timeout_seconds
        wait_seconds, num_left = _FIRST_WAIT_SECONDS, self._num_attempts
        while True:
            num_left -= 1
            left = max(deadline - time.monotonic(), 0.001)
            try:
                return self._ask_once(method, what, signature, content, left)
            except PredictionError as error:
                self._signatures = None  # another version may be served by now
                too_late = time.monotonic() + wait_seconds >= deadline
                # What was refused once is refused again, and a server that took too long needs
                # no second request. All others may be repeated: a server keeps nothing.
                if error.code != StatusCode.UNAVAILABLE or not num_left or too_late:
                    raise
            time.sleep(wait_seconds)
            wait_seconds *= 2

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


_KINDS = {"nll": "f", "probabilities": "f", "texts_bytes": "O", "candidate_texts_bytes": "O"}
_MEMORY_KINDS = {np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)}


def require_answer(
    answer: Mapping[str, np.ndarray],
    signature_name: str,
    shapes: Mapping[str, tuple[int | None, ...]],
    memory_shape: tuple[int | None, ...],
) -> None:
    """Refuses an answer that is not for one row, or has numbers that cannot be.

    Args:
        answer: dict of output name to array.
        signature_name: str. What was asked.
        shapes: dict of the outputs that are needed, beside memory, to their
            shapes; None is any size.
        memory_shape: the shape of memory as the signature takes it.

    Raises:
        PredictionError: INTERNAL with the first thing that is wrong.
    """
    wanted = {**shapes, "memory_states": memory_shape, "memory_valid_length": (1,)}
    for name, sizes in wanted.items():
        fault = _fault(name, answer.get(name), sizes)
        if fault:
            raise _refused(f"{name} {fault}", signature_name)
    memory_length = answer["memory_states"].shape[2]
    limits = {"memory_valid_length": memory_length}
    if "lengths" in shapes:
        limits["lengths"] = answer["nll"].shape[1]
    for name, highest in limits.items():
        number = int(answer[name][0])
        if not 0 <= number <= highest:
            raise _refused(f"{name} is {number}; it can be 0 to {highest}.", signature_name)


def _refused(message: str, signature_name: str) -> PredictionError:
    words = f"The answer is not one of this signature: {message}"
    return PredictionError(
        StatusCode.INTERNAL, words, server="the server", signature=signature_name
    )


def _fault(name: str, array: np.ndarray | None, sizes: tuple[int | None, ...]) -> str:
    """Describes what is wrong with an array; empty if it is valid."""
    if array is None:
        return "is missing."
    fits = array.ndim == len(sizes) and all(
        size in (None, found) for found, size in zip(array.shape, sizes, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in sizes)
        return f"has the shape {list(array.shape)}; it must be [{wanted}]."
    if name == "memory_states":
        if array.dtype not in _MEMORY_KINDS:
            return f"is of type {array.dtype}."
        return "" if np.all(np.isfinite(array)) else "has numbers that are not finite."
    kind = _KINDS.get(name, "i")
    if array.dtype.kind != kind:
        return f"is of type {array.dtype}."
    if kind == "f" and not (np.all(np.isfinite(array)) and np.all(array >= 0)):
        return "has numbers that are not finite, or negative."
    if kind == "i" and np.any(array < 0):
        return "has negative numbers."
    if kind == "O" and not all(isinstance(each, bytes) for each in array.ravel()):
        return "has values that are not strings."
    return ""
