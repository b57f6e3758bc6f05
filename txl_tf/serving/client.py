"""Client of TensorFlow Serving: sessions that keep the memory of a text, over REST and gRPC.

Shape letters used in this module: L layers, M memory length, D hidden width, T tokens read,
S written tokens.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import urllib3

from txl_tf.storage.untrusted_files import parse_json

_NUM_ATTEMPTS = 4
# Over REST a request must have every input, and JSON has no other form of an empty array.
_SETTINGS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0}
_DTYPES = {float: np.float32, int: np.int32}
_NOTHING_READ = {"memory_states": [], "memory_valid_length": 0}
_MAX_MESSAGE_LETTERS = 2000
# Codes of gRPC by HTTP status, as TensorFlow Serving maps them; 200 is an unreadable answer.
_CODES = {
    200: "INTERNAL",
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class PredictionError(Exception):
    """Failed request: the server refused it or did not answer.

    Attributes:
        code: str. Name of the status code of gRPC, such as `"INVALID_ARGUMENT"`.
    """

    def __init__(self, code: str, where: str, message: str) -> None:
        self.code = code
        super().__init__(f"{code} from {where}: {message}")


class RestTransport:
    """Connection to a model over REST, which threads may share.

    JSON has no shape of an empty array: use `GrpcTransport` for models without memory. A server
    that is not ready is asked again.

    Args:
        address: str. `http://HOST:PORT` of the server.
        model_name: str. Name of the model there; its highest version answers.
        timeout_seconds: float. Most time of a request.
    """

    def __init__(
        self, address: str, model_name: str = "txl", *, timeout_seconds: float = 60.0
    ) -> None:
        self._url = f"{address.rstrip('/')}/v1/models/{model_name}:predict"
        # A server keeps nothing, so every request may be repeated.
        retries = urllib3.Retry(
            _NUM_ATTEMPTS - 1,
            read=False,
            redirect=False,
            status_forcelist=[503],
            allowed_methods=None,
            raise_on_status=False,
            backoff_factor=0.1,
        )
        timeout = urllib3.Timeout(total=timeout_seconds)
        self._pool = urllib3.PoolManager(maxsize=32, retries=retries, timeout=timeout)

    def predict(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature and returns its outputs; PredictionError if that fails."""
        values = {name: array.tolist() for name, array in inputs.items()}
        body = json.dumps({"signature_name": signature, "inputs": {**_NOTHING_READ, **values}})
        try:
            response = self._pool.request("POST", self._url, body=body)
            code, message = _CODES.get(response.status, "UNKNOWN"), f"HTTP {response.status}"
            answer = parse_json(response.data)
            if response.status == 200:
                return {name: _array(value) for name, value in answer["outputs"].items()}
            message = str(answer["error"])[:_MAX_MESSAGE_LETTERS]
        except urllib3.exceptions.ReadTimeoutError as error:
            code, message = "DEADLINE_EXCEEDED", str(error)
        except urllib3.exceptions.HTTPError as error:
            code, message = "UNAVAILABLE", str(error)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            message += ", but the answer is not one of TensorFlow Serving"
        raise PredictionError(code, f"{self._url}, signature `{signature}`", message)

    def close(self) -> None:
        """Closes the connections."""
        self._pool.clear()


def _array(value: Any) -> np.ndarray:
    array = np.array(value)
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)


class GrpcTransport:
    """Connection to a model over gRPC without encryption, which threads may share.

    Args:
        address: str. `HOST:PORT` of the server.
        model_name: str. As for `RestTransport`.
        timeout_seconds: float. As for `RestTransport`.
    """

    def __init__(
        self, address: str, model_name: str = "txl", *, timeout_seconds: float = 60.0
    ) -> None:
        import grpc
        from tensorflow_serving.apis import model_pb2, prediction_service_pb2_grpc

        self._where = f"{address}, model `{model_name}`"
        self._model = model_pb2.ModelSpec(name=model_name)
        self._timeout_seconds = timeout_seconds
        policy = {
            "maxAttempts": _NUM_ATTEMPTS,
            "initialBackoff": "0.1s",
            "maxBackoff": "10s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        service = {"service": "tensorflow.serving.PredictionService"}
        config = {"methodConfig": [{"name": [service], "retryPolicy": policy}]}
        options = {
            "grpc.max_send_message_length": -1,
            "grpc.max_receive_message_length": -1,
            "grpc.service_config": json.dumps(config),
            # By default only messages up to 256 KiB are repeated; memory is larger.
            "grpc.per_rpc_retry_buffer_size": 2**31 - 1,
        }
        self._channel = grpc.insecure_channel(address, options=list(options.items()))
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def predict(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Calls a signature and returns its outputs; PredictionError if that fails."""
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        protos = {name: tf.make_tensor_proto(array) for name, array in inputs.items()}
        request = predict_pb2.PredictRequest(model_spec=self._model, inputs=protos)
        request.model_spec.signature_name = signature
        try:
            response = self._stub.Predict(request, timeout=self._timeout_seconds)
            return {name: tf.make_ndarray(each) for name, each in response.outputs.items()}
        except grpc.RpcError as error:
            code, message = error.code().name, error.details() or ""
        except (ValueError, TypeError) as error:
            code, message = "INTERNAL", f"The answer has no arrays: {error}"
        raise PredictionError(code, f"{self._where}, signature `{signature}`", message)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()


class TextState(NamedTuple):
    """The memory of one text and its newest token, which is not in memory yet.

    Attributes:
        memory_states: optional array `(1, L, M, D)`; `None` where nothing has been read.
        memory_valid_length: int32 array `(1,)`, 0 to `M`.
        last_token_id: int. The newest token; -1 where the text begins.
    """

    memory_states: np.ndarray | None = None
    memory_valid_length: np.ndarray = np.zeros([1], np.int32)
    last_token_id: int = -1


class ServingSession:
    """Client session that reads and writes one text on TensorFlow Serving.

    Every answer brings the memory to send with the next request. A failed request raises
    PredictionError and leaves the session unchanged.

    Args:
        transport: `RestTransport` or `GrpcTransport`. Any number of sessions can share one.
        state: optional `TextState` to continue. Defaults to `None`: a new text.

    Attributes:
        state: `TextState` after the newest request.
    """

    def __init__(
        self, transport: RestTransport | GrpcTransport, *, state: TextState | None = None
    ) -> None:
        self._transport = transport
        # Two threads with one text would each continue from the same state.
        self._lock = threading.Lock()
        self.state = TextState() if state is None else state

    def score(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Reads tokens and scores each of them.

        Args:
            token_ids: int vector `(T,)` of at least one token.

        Returns:
            Float32 array `(T,)` of nats; 0 for the first token of a text, which has no score.

        Raises:
            ValueError: If there are no tokens.
        """
        if not len(token_ids):
            raise ValueError("`token_ids` must not be empty. Received: no tokens")
        with self._lock:
            begins = self.state.last_token_id < 0
            text = self._unread(token_ids)
            if len(text) == 1:  # it is read with the next tokens
                self.state = self.state._replace(last_token_id=int(text[0]))
                return np.zeros([1], np.float32)
            nll = self._ask("score", text[:-1], {"target_ids": text[None, 1:]}, text[-1])["nll"][0]
            return np.append(np.float32(0.0), nll) if begins else nll

    def generate(
        self, max_tokens: int, token_ids: Sequence[int] | np.ndarray = (), **settings: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads tokens and writes the next ones; the text then has both.

        Args:
            max_tokens: int. The most tokens to write.
            token_ids: int vector `(T,)` to read before.
            **settings: other inputs of the signature, such as `temperature`, `top_k`, `top_p`,
                `min_p`, `seed` and `stop_token_id`, see `GenerationConfig`; the server checks them.

        Returns:
            Tuple of token ids, int32 `(S,)`, and the nats of each, float32 `(S,)`.

        Raises:
            ValueError: If the text has no token.
        """
        with self._lock:
            text = self._unread(token_ids)
            stops = np.array([[settings.pop("stop_token_id", -1)]], np.int32)
            inputs = {
                name: np.array([value], _DTYPES[type(_SETTINGS.get(name, 0))])
                for name, value in {"max_tokens": max_tokens, **_SETTINGS, **settings}.items()
            }
            answer = self._ask("generate", text, {**inputs, "stop_token_ids": stops}, text[-1])
            count = int(answer["lengths"][0])
            return answer["token_ids"][0, :count], answer["nll"][0, :count]

    def _unread(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the tokens that are not in memory yet."""
        array = np.asarray(token_ids, np.int32)
        if array.ndim != 1:
            raise ValueError(f"`token_ids` must be a vector. Received: shape {array.shape}")
        if self.state.last_token_id >= 0:
            array = np.append(np.int32(self.state.last_token_id), array)
        if not array.size:
            raise ValueError("`token_ids` must not be empty in a new session. Received: no tokens")
        return array

    def _ask(
        self, name: str, text: np.ndarray, inputs: dict[str, np.ndarray], last_token_id: int
    ) -> dict[str, np.ndarray]:
        """Reads a text by a signature with further inputs, and keeps the memory of the answer."""
        inputs = {**inputs, "token_ids": text[None], "lengths": np.array([len(text)], np.int32)}
        states, valid, _ = self.state
        if states is not None:
            inputs |= {"memory_states": states, "memory_valid_length": valid}
        answer = self._transport.predict(name, inputs)
        if "token_ids" in answer and answer["lengths"][0]:
            last_token_id = int(answer["token_ids"][0, answer["lengths"][0] - 1])
        self.state = TextState(
            answer["memory_states"], answer["memory_valid_length"], last_token_id
        )
        return answer
