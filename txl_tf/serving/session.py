"""Client session: keeps the memory of one text and sends it with each request.

Shape letters used in this module: B rows, L layers, M memory length, D hidden width, T tokens,
S written tokens, C candidates.
"""

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np
import tensorflow as tf

from txl_tf.serving.rest_transport import Transport, require_answer

_FLOATS = ("temperature", "top_p")


@dataclasses.dataclass(frozen=True)
class SamplingSettings:
    """Settings of the signatures that write; the server checks their ranges.

    Attributes:
        temperature: float. 0 always takes the most probable token.
        top_k: int. Only the `top_k` most probable tokens; 0 is all.
        top_p: float. Only the most probable tokens that together have this
            probability; 1 is all.
        seed: int. The same seed gives the same text, in any batch.
        stop_token_id: int. Writing ends with this token; -1 is none.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_id: int = -1

    def inputs(self) -> dict[str, np.ndarray]:
        """Returns the settings as inputs of a signature, float32 or int32 `(1,)`."""
        return {
            name: np.array([value], np.float32 if name in _FLOATS else np.int32)
            for name, value in dataclasses.asdict(self).items()
        }


class TextState(NamedTuple):
    """The memory of one text and its newest token, which is not in memory yet.

    Arrays are read-only, so that states can be shared: going on from the same
    state twice gives two texts with the same beginning.

    Attributes:
        memory_states: float32 or bfloat16 array `(1, L, M, D)`. None where
            nothing has been read, which is memory of zeros.
        memory_valid_length: int32 array `(1,)`, 0 to `M`.
        last_token_id: int. The newest token; -1 where the text begins.
    """

    memory_states: np.ndarray | None
    memory_valid_length: np.ndarray
    last_token_id: int

    @classmethod
    def initial(cls) -> "TextState":
        """Returns the state of a text of which nothing has been read."""
        return cls(None, _frozen(np.zeros([1], np.int32)), -1)

    @classmethod
    def of_answer(cls, answer: dict[str, np.ndarray], last_token_id: int) -> "TextState":
        """Returns the state after the answer of a signature for one row."""
        states, valid_length = answer["memory_states"], answer["memory_valid_length"]
        return cls(_frozen(states), _frozen(valid_length), last_token_id)


def _frozen(array: np.ndarray) -> np.ndarray:
    array = array.view()
    array.flags.writeable = False
    return array


_Answer = dict[str, np.ndarray]
# What is needed of answers, beside memory; any size where there is none.
_CANDIDATES = {"candidate_ids": (1, None), "probabilities": (1, None)}
_WRITTEN = {"token_ids": (1, None), "nll": (1, None), "lengths": (1,)}
_SCORED_TEXT = {"nll": (1, None), "lengths": (1,), "last_token_ids": (1,)}
_CANDIDATE_TEXTS = {
    "candidate_texts_bytes": (1, None),
    "probabilities": (1, None),
    "last_token_ids": (1,),
}
_WRITTEN_TEXT = {"texts_bytes": (1,), "last_token_ids": (1,)}


class ServingSession:
    """Client session that reads and writes one text.

    Every answer brings the memory to send with the next request. A request that
    fails leaves the session as it was. Where a new version of the model is
    loaded between two requests, the text goes on with the memory it has; a
    transport with `version` insists on one. Every request raises PredictionError
    if the server refuses it or does not answer.

    Args:
        transport: `Transport`. Any number of sessions can share one.
        compress_memory: bool. Whether memory is kept as bfloat16, half as large.
            It is rounded by it. Signatures that take bfloat16 get it so over
            gRPC; those that take float32 get the rounded values.
        state: optional `TextState` to go on from; by default a new text.

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
        # Two threads with one text would each go on from the same state.
        self._lock = threading.Lock()
        self.state = TextState.initial() if state is None else state

    def score(self, token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Reads tokens and scores each of them.

        Args:
            token_ids: int vector `(T,)`. What comes next in the text.

        Returns:
            Float32 array `(T,)` of nats; 0 for the first token of a text, which
            nothing predicts.

        Raises:
            ValueError: If there are no tokens.
        """
        token_ids = _vector(token_ids)
        if not token_ids.size:
            raise ValueError("`token_ids` must have a token. Received: none")
        with self._lock:
            return self._score(token_ids)

    def next_token(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the most probable next tokens. The text does not change.

        Returns:
            Tuple of token ids, int32 `(C,)`, and their probabilities, float32
            `(C,)`, the most probable first.

        Raises:
            ValueError: If nothing has been read.
        """
        with self._lock:
            read = self._read_ids(np.zeros([0], np.int32))
            answer = self._ask("next_token", _row(read), _CANDIDATES)
            return answer["candidate_ids"][0], answer["probabilities"][0]

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
            read = self._read_ids(_vector(token_ids))
            inputs = {**_row(read), **_sampling(max_tokens, settings)}
            answer = self._ask("generate", inputs, _WRITTEN)
            count = int(answer["lengths"][0])
            token_ids, nll = answer["token_ids"][0, :count], answer["nll"][0, :count]
            self._keep(answer, int([*read, *token_ids][-1]))
            return token_ids, nll

    def score_text(self, text: str | bytes) -> np.ndarray:
        """Reads a piece of text and scores each of its tokens.

        Returns:
            Float32 array `(T,)` of nats; 0 for the first token of a text.
        """
        with self._lock:
            answer = self._ask("score_text", self._text(text), _SCORED_TEXT)
            self._keep(answer, int(answer["last_token_ids"][0]))
            return answer["nll"][0, : answer["lengths"][0]]

    def next_token_text(self, text: str | bytes = "") -> tuple[list[bytes], np.ndarray]:
        """Reads a piece of text and returns the most probable next tokens.

        Returns:
            Tuple of the texts of `C` tokens and their probabilities, float32
            `(C,)`, the most probable first.
        """
        with self._lock:
            answer = self._ask("next_token_text", self._text(text), _CANDIDATE_TEXTS)
            self._keep(answer, int(answer["last_token_ids"][0]))
            return answer["candidate_texts_bytes"][0].tolist(), answer["probabilities"][0]

    def generate_text(
        self, max_tokens: int, text: str | bytes = "", settings: SamplingSettings | None = None
    ) -> bytes:
        """Reads a piece of text and writes the next one.

        Args:
            max_tokens: int. The most tokens to write.
            text: str or bytes to read before.
            settings: optional `SamplingSettings`.

        Returns:
            What was written. Tokens may cut a character apart, so it is bytes.
        """
        with self._lock:
            inputs = {**self._text(text), **_sampling(max_tokens, settings)}
            answer = self._ask("generate_text", inputs, _WRITTEN_TEXT)
            self._keep(answer, int(answer["last_token_ids"][0]))
            return answer["texts_bytes"][0]

    def _score(self, token_ids: np.ndarray) -> np.ndarray:
        begins = self.state.last_token_id < 0
        text = token_ids if begins else np.append(np.int32(self.state.last_token_id), token_ids)
        text = text.astype(np.int32)
        if len(text) == 1:  # nothing to predict it from, and nothing to read yet
            self.state = self.state._replace(last_token_id=int(text[0]))
            return np.zeros([1], np.float32)
        inputs = {**_row(text[:-1]), "target_ids": text[None, 1:]}
        answer = self._ask("score", inputs, {"nll": (1, len(text) - 1)})
        self._keep(answer, int(text[-1]))
        nll = answer["nll"][0]
        return np.append(np.float32(0.0), nll) if begins else nll

    def _read_ids(self, token_ids: np.ndarray) -> np.ndarray:
        """Returns the tokens that are not in memory yet."""
        last = [self.state.last_token_id] if self.state.last_token_id >= 0 else []
        read = np.append(np.array(last, np.int32), token_ids).astype(np.int32)
        if not read.size:
            raise ValueError("The text must have a token to go on from. Received: none")
        return read

    def _text(self, text: str | bytes) -> dict[str, np.ndarray]:
        encoded = text.encode() if isinstance(text, str) else text
        return {
            "texts": np.array([encoded], object),
            "previous_token_ids": np.array([self.state.last_token_id], np.int32),
        }

    def _ask(
        self,
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        shapes: Mapping[str, tuple[int | None, ...]],
    ) -> _Answer:
        memory = self._memory(signature_name)
        answer = self._transport.predict(signature_name, {**inputs, **memory})
        sizes = memory["memory_states"].shape
        # The signature does not say sizes of its memory, or there is none of it.
        memory_shape = sizes if all(sizes) else (1, None, None, None)
        require_answer(answer, signature_name, shapes, memory_shape)
        return answer

    def _memory(self, signature_name: str) -> dict[str, np.ndarray]:
        states = self.state.memory_states
        definitions = self._transport.signatures()
        dtype, shape = np.dtype(np.float32), [1, 0, 0, 0]
        if signature_name in definitions:  # otherwise the server says that there is none
            taken = definitions[signature_name].inputs["memory_states"]
            dtype = np.dtype(tf.as_dtype(taken.dtype).as_numpy_dtype)
            sizes = [int(size.size) for size in taken.tensor_shape.dim]
            if len(sizes) == 4 and min(sizes[1:]) >= 0:
                shape = [1, *sizes[1:]]
        states = np.zeros(shape, dtype) if states is None else states.astype(dtype)
        return {
            "memory_states": states,
            "memory_valid_length": self.state.memory_valid_length,
        }

    def _keep(self, answer: _Answer, last_token_id: int) -> None:
        if self._compress_memory:
            states = answer["memory_states"].astype(ml_dtypes.bfloat16)
            answer = {**answer, "memory_states": states}
        self.state = TextState.of_answer(answer, last_token_id)


def _vector(token_ids: Sequence[int] | np.ndarray) -> np.ndarray:
    array = np.asarray(token_ids, np.int32)
    if array.ndim != 1:
        raise ValueError(f"`token_ids` must be a vector. Received: shape {array.shape}")
    return array


def _row(token_ids: np.ndarray) -> dict[str, np.ndarray]:
    return {"token_ids": token_ids[None], "lengths": np.array([len(token_ids)], np.int32)}


def _sampling(max_tokens: int, settings: SamplingSettings | None) -> dict[str, np.ndarray]:
    settings = SamplingSettings() if settings is None else settings
    return {"max_tokens": np.array([max_tokens], np.int32), **settings.inputs()}
