"""Features of texts: hidden states of a layer, by token, segment or text.

Shape letters used in this module:
  R texts, B rows read side by side, T segment length, S tokens or segments of a
  text, D hidden width, L layers.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.causal_lm.text_arguments import POOLINGS, Pooling
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import device_of
from txl_tf.models.sizes import hidden_layer


class TextFeatures:
    """Reader of `R` rows of tokens that keeps the states of one layer.

    Texts are read side by side, each from an empty memory. Rows are padded on the right to whole
    segments, which no token before the padding sees, so a text's features do not depend on other
    texts: float32 `(S, D)` for tokens or segments, `(D,)` for the last token or the mean.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._readers: dict[tuple[int, int], LayerReader] = {}

    def __call__(
        self,
        token_rows: Sequence[np.ndarray],
        layer: int | None,
        pooling: Pooling,
        batch_size: int,
    ) -> list[np.ndarray]:
        if pooling not in POOLINGS:
            raise ValueError(f"`pooling` must be one of {POOLINGS}. Received: pooling={pooling!r}")
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        lengths = [len(row) for row in token_rows]
        if 0 in lengths:
            raise ValueError(
                f"A text must have at least 1 token. Received: none in text {lengths.index(0)}"
            )
        chosen = hidden_layer(self._model.config, layer)
        num_rows = min(batch_size, len(token_rows))
        reader = self._reader(num_rows, chosen)
        pools = [_Pool(pooling, reader.segment_length) for _ in token_rows]
        for group in groups_by_length(lengths, num_rows):
            reader.read([token_rows[i] for i in group], [pools[i].add for i in group])
        return [pool.result() for pool in pools]

    def _reader(self, num_rows: int, layer: int) -> "LayerReader":
        key = num_rows, layer
        if key not in self._readers:
            self._readers[key] = LayerReader(self._model, *key)
        return self._readers[key]


def groups_by_length(lengths: Sequence[int], num_rows: int) -> Iterator[np.ndarray]:
    """Yields the indices of texts of similar length, to limit padding."""
    order = np.argsort(lengths, kind="stable")
    for first in range(0, len(order), num_rows):
        yield order[first : first + num_rows]


class LayerReader:
    """Compiled reader of `B` rows that keeps one layer, see `hidden_layer`."""

    def __init__(self, model: keras.Model, num_rows: int, layer: int) -> None:
        # On a CPU, XLA takes longer to compile than to read a few texts.
        compiles = False if device_of(model) == "CPU" else None
        self._engine = InferenceEngine(model, num_rows=num_rows, jit_compile=compiles)
        self._num_rows = num_rows
        # A recurrent model only returns its last output.
        self._index = layer if self._engine.memory_length is not None else -1
        self.segment_length: int = self._engine.segment_length
        self._step = tf.function(
            self._hidden, jit_compile=self._engine.plan.compile_read, autograph=False
        )

    def _hidden(self, token_ids: tf.Tensor, memory: Any, constants: Any) -> tuple[tf.Tensor, Any]:
        states, memory = self._engine.hidden_states(token_ids, memory, constants=constants)
        return ops.cast(states[self._index], "float32"), memory

    def read(
        self, rows: Sequence[np.ndarray], take: Sequence[Callable[[np.ndarray], None]]
    ) -> None:
        """Reads at most `B` texts; passes the states `(S, D)` of each to its function, in order."""
        engine, longest = self._engine, max(map(len, rows))
        num_segments = -(-longest // self.segment_length)
        at_once = engine.plan.segments_per_read(self._num_rows, self.segment_length)
        # Powers of two limit the number of programs for texts of all lengths.
        step_tokens = min(at_once, 1 << (num_segments - 1).bit_length()) * self.segment_length
        constants = engine.constants(step_tokens)
        memory = engine.initial_memory(self._num_rows)
        for start in range(0, longest, step_tokens):
            token_ids = np.zeros((self._num_rows, step_tokens), np.int32)
            pieces = [row[start : start + step_tokens] for row in rows]
            for index, piece in enumerate(pieces):
                token_ids[index, : len(piece)] = piece
            # Whole segments, because absolute positions count from the end of a segment.
            hidden, memory = self._step(tf.constant(token_ids), memory, constants)
            states = hidden.numpy()
            for index, piece in enumerate(pieces):
                if len(piece):
                    take[index](states[index, : len(piece)])


class _Pool:
    """Collector of the states of one text; for pooled texts it keeps one vector."""

    def __init__(self, pooling: Pooling, segment_length: int) -> None:
        self._pooling = pooling
        self._segment_length = segment_length
        self._parts: list[np.ndarray] = []
        self._num_tokens = 0

    def add(self, states: np.ndarray) -> None:
        """Adds the states `(S, D)` of the next tokens, from the start of a segment."""
        self._num_tokens += len(states)
        if self._pooling == "tokens":
            self._parts.append(states.copy())
        elif self._pooling == "segments":
            starts = range(0, len(states), self._segment_length)
            segments = (states[start : start + self._segment_length] for start in starts)
            means = [np.mean(each, axis=0, dtype=np.float64) for each in segments]
            self._parts.append(np.stack(means))
        elif self._pooling == "last":
            self._parts = [states[-1].copy()]
        else:
            total = np.asarray(np.sum(states, axis=0, dtype=np.float64))
            self._parts = [np.add(total, self._parts[0]) if self._parts else total]

    def result(self) -> np.ndarray:
        """Returns the features of the text, float32."""
        if self._pooling in ("tokens", "segments"):
            return np.concatenate(self._parts).astype(np.float32)
        divisor = self._num_tokens if self._pooling == "mean" else 1
        return (self._parts[0] / divisor).astype(np.float32)
