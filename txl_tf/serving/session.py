"""Client session: keeps the memory of one text and sends it with each request.

Shape letters used in this module: L layers, M memory length, D hidden width, T tokens read,
S written tokens.
"""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.serving.rest_transport import PredictionError, Transport

_FLOATS = ("temperature", "top_p")


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """Settings of the signatures that write, see `GenerationConfig`; the server checks them.

    Writing ends with `stop_token_id`; -1 disables it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_id: int = -1


class TextState(NamedTuple):
    """The memory of one text and its newest token, which is not in memory yet.

    Attributes:
        memory_states: read-only float32 or bfloat16 array `(1, L, M, D)`; `None`
            where nothing has been read.
        memory_valid_length: int32 array `(1,)`, 0 to `M`.
        last_token_id: int. The newest token; -1 where the text begins.
    """

    memory_states: np.ndarray | None = None
    memory_valid_length: np.ndarray = np.zeros([1], np.int32)
    last_token_id: int = -1


class ServingSession:
    """Client session that reads and writes one text on TensorFlow Serving.

    Every answer brings the memory to send with the next request. A request that
    fails leaves the session as it was, and raises PredictionError.

    Args:
        transport: `Transport`. Any number of sessions can share one.
        compress_memory: bool. Whether memory is kept as bfloat16, rounded and half
            as large. Signatures that take float32 get the rounded values.
        state: optional `TextState` to continue; by default a new text.

    Attributes:
        state: `TextState` after the newest request.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        compress_memory: bool = False,
        state: TextState | None = None,
    ) -> None:
        self._transport = transport
        self._compress_memory = compress_memory
        # Two threads with one text would each continue from the same state.
        self._lock = threading.Lock()
        self.state = TextState() if state is None else state

    def score(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Reads tokens and scores each of them.

        Args:
            token_ids: int vector `(T,)` of at least one token.

        Returns:
            Float32 array `(T,)` of nats; 0 for the first token of a text, which
            nothing predicts.

        Raises:
            ValueError: If there are no tokens.
        """
        with self._lock:
            begins = self.state.last_token_id < 0
            text = self._unread(token_ids)
            if not len(token_ids):
                raise ValueError("`token_ids` must have a token. Received: none")
            if len(text) == 1:  # no token predicts it, and it is read with the next ones
                self.state = self.state._replace(last_token_id=int(text[0]))
                return np.zeros([1], np.float32)
            inputs = {**_row(text[:-1]), "target_ids": text[None, 1:]}
            nll = self._ask("score", inputs, text[-1])["nll"][0]
            return np.append(np.float32(0.0), nll) if begins else nll

    def generate(
        self,
        max_tokens: int,
        token_ids: Sequence[int] | np.ndarray = (),
        settings: SamplingSettings | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads tokens and writes the next ones; both belong to the text then.

        Args:
            max_tokens: int. The most tokens to write.
            token_ids: int vector `(T,)` to read before.
            settings: optional `SamplingSettings`.

        Returns:
            Tuple of token ids, int32 `(S,)`, and the nats of each, float32 `(S,)`.

        Raises:
            ValueError: If the text has no token.
        """
        with self._lock:
            read = self._unread(token_ids)
            inputs = {**_row(read), **_sampling(max_tokens, settings)}
            answer = self._ask("generate", inputs, read[-1])
            count = int(answer["lengths"][0])
            return answer["token_ids"][0, :count], answer["nll"][0, :count]

    def score_text(self, text: str | bytes) -> np.ndarray:
        """Reads a piece of text and scores each of its tokens.

        Returns:
            Float32 array `(T,)` of nats; 0 for the first token of a text.
        """
        with self._lock:
            answer = self._ask("score_text", self._text(text))
            return answer["nll"][0, : answer["lengths"][0]]

    def generate_text(
        self, max_tokens: int, text: str | bytes = "", settings: SamplingSettings | None = None
    ) -> bytes:
        """Reads a piece of text and writes the next one.

        Args:
            max_tokens: int. The most tokens to write.
            text: str or bytes to read before.
            settings: optional `SamplingSettings`.

        Returns:
            The continuation, in bytes: tokens may cut a character apart.
        """
        with self._lock:
            inputs = {**self._text(text), **_sampling(max_tokens, settings)}
            return self._ask("generate_text", inputs)["texts_bytes"][0]

    def _unread(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the tokens that are not in memory yet."""
        array = np.asarray(token_ids, np.int32)
        if array.ndim != 1:
            raise ValueError(f"`token_ids` must be a vector. Received: shape {array.shape}")
        if self.state.last_token_id >= 0:
            array = np.append(np.int32(self.state.last_token_id), array)
        if not array.size:
            raise ValueError("The text must have a token to continue. Received: none")
        return array

    def _text(self, text: str | bytes) -> dict[str, np.ndarray]:
        encoded = text.encode() if isinstance(text, str) else text
        return {
            "texts": np.array([encoded], object),
            "previous_token_ids": np.array([self.state.last_token_id], np.int32),
        }

    def _ask(
        self, name: str, inputs: Mapping[str, np.ndarray], last_token_id: int = -1
    ) -> dict[str, np.ndarray]:
        """Calls a signature and keeps its memory."""
        answer = self._transport.predict(name, {**inputs, **self._memory(name)})
        try:
            if "last_token_ids" in answer:
                last_token_id = int(answer["last_token_ids"][0])
            elif "token_ids" in answer and answer["lengths"][0]:
                last_token_id = int(answer["token_ids"][0, answer["lengths"][0] - 1])
            states, valid = answer["memory_states"], answer["memory_valid_length"]
            if not (len(states) == len(valid) == 1 and 0 <= valid[0] <= states.shape[2]):
                raise ValueError(f"memory {states.shape} with valid lengths {valid}")
        except (LookupError, ValueError) as error:
            message = f"The answer is not of one text: {error}"
            raise PredictionError(
                "INTERNAL", message, server="the server", signature=name
            ) from error
        states = states.astype(ml_dtypes.bfloat16) if self._compress_memory else states.view()
        states.flags.writeable = False
        self.state = TextState(states, valid, last_token_id)
        return answer

    def _memory(self, name: str) -> dict[str, np.ndarray]:
        # The server names its signatures where it does not have this one.
        definition = self._transport.signatures().get(name, meta_graph_pb2.SignatureDef())
        info = definition.inputs["memory_states"]
        dtype = tf.as_dtype(info.dtype or tf.float32).as_numpy_dtype
        states = self.state.memory_states
        if states is None:
            sizes = [max(axis.size, 0) for axis in info.tensor_shape.dim[1:]]
            states = np.zeros([1, *(sizes or [0, 0, 0])])
        return {
            "memory_states": states.astype(dtype),
            "memory_valid_length": self.state.memory_valid_length,
        }


def _row(token_ids: np.ndarray) -> dict[str, np.ndarray]:
    return {"token_ids": token_ids[None], "lengths": np.array([len(token_ids)], np.int32)}


def _sampling(max_tokens: int, settings: SamplingSettings | None) -> dict[str, np.ndarray]:
    values = dataclasses.asdict(SamplingSettings() if settings is None else settings)
    return {
        name: np.array([value], np.float32 if name in _FLOATS else np.int32)
        for name, value in {"max_tokens": max_tokens, **values}.items()
    }
