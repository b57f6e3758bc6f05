"""Hidden states of a layer for texts of any length, and features of texts.

Shape letters used in this module:
  B rows read side by side, S tokens or segments of a text, D hidden width.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import keras
import numpy as np
from keras import ops

from txl_tf.config.model import AnyModelConfig, ModelConfig
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.segment_reader import SegmentReader

Pooling = Literal["tokens", "segments", "last", "mean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
"""Reductions of the hidden states of tokens to features of a text."""


def hidden_layer(config: AnyModelConfig, layer: int | None) -> int:
    """Returns the index of a layer; ValueError if its hidden states do not exist.

    0 is the embedding layer, `L` or `None` the last block; negative ones count from the last, -1.
    A recurrent model only has the last.
    """
    last = config.num_layers
    number = last if layer is None else layer + (last + 1 if layer < 0 else 0)
    first = 0 if isinstance(config, ModelConfig) else last
    if not first <= number <= last:
        valid_range = f"0 to {last} or {-last - 1} to -1" if first < last else f"{last} or -1"
        raise ValueError(f"`layer` must be {valid_range} for this model. Received: layer={layer}")
    return number


class LayerReader:
    """Reader of texts, `B` side by side, that keeps one layer, see `hidden_layer`.

    `config` has the lengths to read with, by default the model's.
    """

    def __init__(
        self,
        model: keras.Model,
        num_rows: int,
        layer: int | None = None,
        config: AnyModelConfig | None = None,
    ) -> None:
        self._engine = InferenceEngine(model, config=config, num_rows=num_rows)
        self._num_rows = num_rows
        self._layer = hidden_layer(model.config, layer)
        # A recurrent model only returns its last output.
        is_recurrent = not isinstance(model.config, ModelConfig)
        self._is_output = is_recurrent or self._layer == model.config.num_layers
        self._reader = SegmentReader(self._engine, self._hidden_states)
        self.segment_length = self._engine.segment_length

    def _hidden_states(self, token_ids: Any, memory: Any, constants: Any) -> tuple[Any, Any]:
        if self._is_output:
            # A subclass of the user may change what `call` returns, so `call` is read.
            outputs, memory = self._engine.read(token_ids, memory, constants=constants)
        else:
            states, memory = self._engine.hidden_states(token_ids, memory, constants=constants)
            outputs = states[self._layer]
        return ops.cast(outputs, "float32"), memory

    def groups(self, lengths: Sequence[int]) -> Iterator[np.ndarray]:
        """Yields the indices of at most `B` texts of similar length, to limit padding."""
        order = np.argsort(lengths, kind="stable")
        for first in range(0, len(order), self._num_rows):
            yield order[first : first + self._num_rows]

    def read(self, rows: Sequence[np.ndarray]) -> Iterator[tuple[int, int, np.ndarray]]:
        """Reads at most `B` texts, each from an empty memory.

        Yields the row, the place of the first token and the states `(S, D)` of the next tokens.
        """
        for batch, hidden, _ in self._reader.read_texts(rows, self._num_rows):
            states = np.asarray(hidden)
            for row, count in enumerate(batch.lengths.tolist()):
                if count:
                    yield row, batch.start, states[row, :count]


def text_features(
    reader: LayerReader, token_rows: Sequence[np.ndarray], pooling: Pooling
) -> list[np.ndarray]:
    """Returns float32 features: `(S, D)` by token or segment, `(D,)` of the last or the mean."""
    if pooling not in POOLINGS:
        raise ValueError(f"`pooling` must be one of {POOLINGS}. Received: pooling={pooling!r}")
    lengths = [len(row) for row in token_rows]
    if 0 in lengths:
        raise ValueError(
            f"A text must have at least 1 token. Received: texts[{lengths.index(0)}] without one"
        )
    parts: list[list[np.ndarray]] = [[] for _ in token_rows]
    for group in reader.groups(lengths):
        for row, _, states in reader.read([token_rows[i] for i in group]):
            parts[group[row]].append(_pool(states, pooling, reader.segment_length))
    if pooling == "mean":
        sums = (np.sum(each, axis=0) for each in parts)
        return [np.array(s[0] / n, np.float32) for s, n in zip(sums, lengths, strict=True)]
    if pooling == "last":
        return [each[-1][0] for each in parts]
    return [np.concatenate(each).astype(np.float32) for each in parts]


def _pool(states: np.ndarray, pooling: Pooling, segment_length: int) -> np.ndarray:
    """Reduces states `(S, D)` to what the features need; a mean begins as a sum."""
    if pooling == "last":
        return states[-1:].copy()
    if pooling == "mean":
        return np.asarray(np.sum(states, axis=0, dtype=np.float64, keepdims=True))
    if pooling == "tokens":
        return states.copy()
    starts = range(0, len(states), segment_length)
    segments = (states[start : start + segment_length] for start in starts)
    return np.stack([np.mean(each, axis=0, dtype=np.float64) for each in segments])
