"""Reader of rows of tokens, segment by segment with memory.

Shape letters used in this module: B rows, S tokens that are read at once, T segment length,
D hidden width.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import device_of
from txl_tf.layers.compiled_parts import compiled


class SegmentBatch(NamedTuple):
    """Next tokens of all rows, padded on the right with 0.

    `token_ids` are int32 `(B, S)`. `start` is the place of the first of them in every row.
    `lengths`, `(B,)`, are the numbers of tokens without padding.
    """

    token_ids: np.ndarray
    start: int
    lengths: np.ndarray


class Piece(NamedTuple):
    """A batch, the outputs for its tokens, and the memory after it."""

    batch: Any
    outputs: Any
    memory: Any


def read_batches(
    step: Callable[[Any, Any], tuple[Any, Any]],
    batches: Iterable[Any],
    initial_memory: Callable[[], Any],
) -> Iterator[Piece]:
    """Reads batches in order; `step` maps a batch and a memory to outputs and the next memory.

    In each batch whose `start` is 0, the rows begin with the `initial_memory`. This function is
    called only then, as an empty memory that is kept could be as large as everything else.
    """
    memory = None
    for batch in batches:
        if batch.start == 0:
            memory = initial_memory()
        outputs, memory = step(batch, memory)
        yield Piece(batch, outputs, memory)


class SegmentReader:
    """Reader of rows that may end at different places, in few programs.

    Args:
        engine: `InferenceEngine`.
        compute: optional function with the arguments of `engine.read` that returns outputs and the
            next memory. By default it is `engine.read`, whose outputs are the hidden states
            `(B, S, D)`.

    Attributes:
        engine: `InferenceEngine` of the constructor.
    """

    def __init__(self, engine: InferenceEngine, compute: Callable[..., Any] | None = None) -> None:
        self.engine = engine
        compute = engine.read if compute is None else compute
        # On a CPU, XLA takes longer to compile than to read a few texts.
        compiles = engine.plan.compile_read and device_of(engine.model) != "CPU"
        self._read_whole = compiled(compute, engine.model, compiles)
        # After a memory, the lengths of texts vary too much to compile a program for each.
        self._read_next = compiled(compute, engine.model)

    def read_texts(self, rows: Sequence[np.ndarray], num_rows: int) -> Iterator[Piece]:
        """Reads at most `num_rows` texts from an empty memory, one or more segments at once.

        No token sees the padding after it, so the outputs of a text do not depend on other texts.
        All segments are padded to their full length, from whose end absolute positions count.
        """
        engine, longest = self.engine, max(map(len, rows))
        num_segments = -(-longest // engine.segment_length)
        at_once = engine.plan.segments_per_read(num_rows, engine.segment_length)
        size = min(at_once, power_of_two(num_segments)) * engine.segment_length
        constants = engine.cached_constants(size)
        rows = [*rows, *[np.zeros(0, np.int32)] * (num_rows - len(rows))]

        def step(batch: SegmentBatch, memory: Any) -> tuple[Any, Any]:
            return self._read_whole(
                ops.convert_to_tensor(batch.token_ids), memory, constants=constants
            )

        batches = (_batch(rows, start, size, size) for start in range(0, longest, size))
        yield from read_batches(step, batches, lambda: engine.initial_memory(num_rows))

    def read_next(self, rows: Sequence[np.ndarray], memory: Any) -> Iterator[Piece]:
        """Reads texts that follow a memory, segment by segment; no padding enters memory.

        Rows may be empty. If `takes_lengths` of the engine's steps is false, all rows must have the
        same length.
        """
        engine = self.engine
        constants_of = functools.cache(engine.cached_constants)

        def step(batch: SegmentBatch, memory: Any) -> tuple[Any, Any]:
            ids = ops.convert_to_tensor(batch.token_ids)
            if not engine.steps.takes_lengths:
                return self._read_next(ids, memory)
            return self._read_next(
                ids,
                memory,
                lengths=common_length(batch.lengths),
                constants=constants_of(batch.token_ids.shape[1]),
            )

        batches = segments(rows, engine.segment_length, self._pad)
        yield from read_batches(step, batches, lambda: memory)

    def _pad(self, length: int) -> int:
        """Returns the size of a segment of `length` tokens with its padding."""
        engine = self.engine
        if not engine.steps.takes_lengths:
            return length
        if not engine.config.has_relative_positions:
            return engine.segment_length  # absolute positions count from its end
        return min(engine.segment_length, power_of_two(length))

    def memory_after(self, rows: Sequence[np.ndarray], memory: Any) -> Any:
        """Returns the memory after the texts of all rows, whose lengths may differ."""
        if not self.engine.steps.takes_lengths and len({len(row) for row in rows}) > 1:
            alone = [
                self.memory_after([row], _row_of(memory, number)) for number, row in enumerate(rows)
            ]
            return joined_rows(alone)
        for piece in self.read_next(rows, memory):
            memory = piece.memory
        return memory


def segments(
    rows: Sequence[np.ndarray],
    segment_length: int,
    size_of: Callable[[int], int] = lambda length: length,
) -> Iterator[SegmentBatch]:
    """Cuts rows into segments; `size_of` maps a number of tokens to the size with padding."""
    longest = max(map(len, rows))
    for start in range(0, longest, segment_length):
        length = min(segment_length, longest - start)
        yield _batch(rows, start, length, size_of(length))


def _batch(rows: Sequence[np.ndarray], start: int, length: int, size: int) -> SegmentBatch:
    """Returns `length` tokens of every row from `start` on, padded to `size`."""
    pieces = [row[start : start + length] for row in rows]
    token_ids = np.zeros((len(rows), size), np.int32)
    for row, piece in enumerate(pieces):
        token_ids[row, : len(piece)] = piece
    return SegmentBatch(token_ids, start, np.array([len(piece) for piece in pieces]))


def power_of_two(number: int) -> int:
    """Returns the next power of two, which limits the number of programs."""
    return 1 << (number - 1).bit_length()


def _row_of(memory: Any, row: int) -> Any:
    return keras.tree.map_structure(lambda each: each[row : row + 1], memory)


def joined_rows(memories: list[Any]) -> Any:
    """Returns the rows of several memories as one memory."""
    return keras.tree.map_structure(lambda *each: ops.concatenate(each, axis=0), *memories)


def common_length(lengths: Any) -> Any:
    """Returns lengths as a tensor, a scalar if all are equal, with which programs are faster."""
    lengths = np.asarray(lengths, np.int32)
    are_equal = (lengths == lengths[0]).all()
    return ops.convert_to_tensor(lengths[0] if are_equal else lengths, "int32")
