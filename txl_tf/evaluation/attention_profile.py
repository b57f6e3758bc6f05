"""Profile of a model's attention: the mean probability of each distance, for every head.

Shape letters used in this module: B rows, T segment length, M memory length,
K = M + T key length, L layers, N heads, H head width, D hidden width.
"""

import dataclasses
from typing import Any

import numpy as np
from keras import ops

from txl_tf.config.model import RELATIVE_ENCODINGS, ModelConfig
from txl_tf.layers.compiled_parts import compiled, exact_products
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AttentionProfile:
    """Mean attention by distance, for every head of every layer.

    Dai et al. (2019), Appendix D. The distance of a query to itself is 0.
    Layers and heads are counted from 0.
    """

    attention: np.ndarray
    """Float64 `(L, N, M + 1)`: mean probability of each distance; the sum of a head is 1."""
    entropy: np.ndarray
    """Float64 `(L, N)`: mean entropy of a query's attention, in nats."""
    memory_attention: np.ndarray
    """Float64 `(L, N)`: mean sum of the probabilities of the `M` tokens before a query."""
    num_queries: int
    """Number of averaged queries."""

    @property
    def mean_distance(self) -> np.ndarray:
        """Float64 `(L, N)`: mean distance that a head attends to, in tokens."""
        return self.attention @ np.arange(self.attention.shape[-1])

    @property
    def farthest_head(self) -> tuple[int, int]:
        """Layer and head with the largest mean distance."""
        distance = self.mean_distance
        layer, head = np.unravel_index(np.argmax(distance), distance.shape)
        return int(layer), int(head)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns all arrays by name, for an `.npz` file."""
        return {
            "attention": self.attention,
            "mean_distance": self.mean_distance,
            "entropy": self.entropy,
            "memory_attention": self.memory_attention,
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures of heads and layers as plain JSON types; layers and heads from 1."""
        layer, head = self.farthest_head
        return {
            "num_queries": self.num_queries,
            "num_distances": self.attention.shape[-1],
            "mean_distance": self.mean_distance.tolist(),
            "layer_mean_distance": self.mean_distance.mean(axis=1).tolist(),
            "entropy_nats": self.entropy.tolist(),
            "memory_attention": self.memory_attention.tolist(),
            "farthest_head": {
                "layer": layer + 1,
                "head": head + 1,
                "mean_distance": float(self.mean_distance[layer, head]),
            },
        }


class AttentionProfiler:
    """Measurement of the mean attention of every head by distance.

    Every counted query must see the same distances, 0 to `M`. Otherwise only late queries would
    contribute to large distances. So the model needs `same_length`, see `profiled_config`, and a
    counted query needs `M` tokens before it. The profile then shows the model as it reads token by
    token with a memory of `M`, for any segment length.

    `add` reads the segments of a text in order. `result` and `last_rows` then need a segment with
    counted queries.
    """

    def __init__(
        self, model: TransformerXL, batch_size: int, jit_compile: bool | None = True
    ) -> None:
        self.model = model
        self._memory = model.initial_memory(batch_size)
        self._last: Any = None
        self._step = compiled(self._measure, model, jit_compile)
        self._sums: dict[str, np.ndarray] = {}
        self._num_queries = 0

    @exact_products()
    def add(self, token_ids: np.ndarray, is_counted: np.ndarray) -> None:
        """Reads the next segment `(B, T)` of every row.

        `is_counted`, bool `(B, T)`, selects the queries to average over.
        """
        memory = self._memory
        if np.all(is_counted[0]):
            self._last = (token_ids, memory)
        inputs = (ops.convert_to_tensor(each) for each in (token_ids, is_counted))
        sums, self._memory = self._step(*inputs, memory)
        for name, array in sums.items():
            # Float32 within a segment, float64 over all segments.
            self._sums[name] = self._sums.get(name, 0.0) + np.asarray(array, np.float64)
        self._num_queries += int(np.sum(is_counted))

    def result(self) -> AttentionProfile:
        """Returns the averages over all counted queries."""
        means = {name: array / self._num_queries for name, array in self._sums.items()}
        return AttentionProfile(**means, num_queries=self._num_queries)

    @exact_products()
    def last_rows(self, layer: int, head: int) -> np.ndarray:
        """Computes the attention of one head in the first row, float32 `(T, K)`.

        It reads the last segment again in which all queries of the first row were counted. Column
        `j` is the token at the distance `M - j` before the first token of the segment. Tokens that
        a query cannot see have the probability 0.
        """
        token_ids, memory = self._last
        hidden_states, _ = self.model.hidden_states(ops.convert_to_tensor(token_ids), memory)
        arguments = self.model.attention_inputs(layer, hidden_states[layer], memory)
        probabilities = self.model.blocks[layer].attention(**arguments, return_probabilities=True)
        return np.asarray(probabilities)[0, head]

    def _measure(
        self, token_ids: Any, is_counted: Any, memory: Memory
    ) -> tuple[dict[str, Any], Memory]:
        hidden_states, next_memory = self.model.hidden_states(token_ids, memory)
        layers = []
        for layer, block in enumerate(self.model.blocks):
            arguments = self.model.attention_inputs(layer, hidden_states[layer], memory)
            layers.append(self._layer_sums(block.attention, arguments, is_counted))
        sums = {name: ops.stack([layer[name] for layer in layers]) for name in layers[0]}
        return sums, next_memory

    def _layer_sums(
        self, attention: Any, arguments: dict[str, Any], is_counted: Any
    ) -> dict[str, Any]:
        """Returns sums over rows and queries: `(N, M + 1)` by distance, others `(N,)`."""
        probabilities = attention(**arguments, return_probabilities=True)
        distribution = by_distance(probabilities, self.model.config.memory_length)
        arrays = {"attention": distribution}
        arrays["memory_attention"] = ops.sum(distribution[..., 1:], axis=-1)
        # Hidden keys have the probability 0; the smallest normal number has a finite logarithm.
        surprise = -probabilities * ops.log(ops.maximum(probabilities, np.finfo("float32").tiny))
        arrays["entropy"] = ops.sum(surprise, axis=-1)  # [B, N, T]
        return {
            name: ops.einsum("bnt...,bt->n...", array, ops.cast(is_counted, array.dtype))
            for name, array in arrays.items()
        }


def profiled_config(config: ModelConfig, segment_length: int, memory_length: int) -> ModelConfig:
    """Returns the configuration for profiling a model, which has the same weights.

    Raises ValueError if the model has no memory or no relative positions.
    """
    if not config.has_relative_positions:
        raise ValueError(
            f"`position_encoding` must be one of {', '.join(RELATIVE_ENCODINGS)}, to measure "
            f"attention by distance. Received: position_encoding={config.position_encoding!r}"
        )
    if not config.recurrence or memory_length < 1:
        raise ValueError(
            "The profiled model must have a memory. "
            f"Received: recurrence={config.recurrence}, memory_length={memory_length}"
        )
    return config.replace(
        segment_length=segment_length,
        memory_length=memory_length,
        same_length=True,
        same_length_keys="memory_and_self",
    )


def by_distance(probabilities: Any, memory_length: int) -> Any:
    """Turns probabilities by key `(B, N, T, K)` into probabilities by distance `(B, N, T, M + 1)`.

    Query `t` sees the distance `d` at key `M + t - d`. As in the relative shift, the array is read
    again in rows that are longer by one, which moves each query one place further than the last.
    """
    num_rows, num_heads, segment_length, key_length = probabilities.shape
    flat = ops.reshape(probabilities, [num_rows, num_heads, segment_length * key_length])
    flat = ops.pad(flat, [[0, 0], [0, 0], [0, segment_length]])
    rows = ops.reshape(flat, [num_rows, num_heads, segment_length, key_length + 1])
    return ops.flip(rows[..., : memory_length + 1], axis=3)
