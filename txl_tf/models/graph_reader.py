"""Reading of rows segment by segment within a graph, for heads and exports.

Shape letters used in this module: B rows, L positions of a row, T segment length.
"""

from collections.abc import Callable
from typing import Any

from keras import ops

from txl_tf.imports import is_on_jax


def read_in_graph(
    read_segment: Callable[..., Any],
    token_ids: Any,
    state: Any,
    segment_length: int,
    *,
    num_read: Any = None,
) -> Any:
    """Reads token ids `(B, L)` in a loop of the graph, and returns the last state.

    `read_segment` maps the place of a segment's first token, its ids `(B, T)` and a structure of
    tensors, whose shapes stay, to the next such structure. Segments from `num_read` tokens on are
    skipped. The last segment is padded with 0.
    """
    num_rows, length = ops.shape(token_ids)
    num_segments = -(-length // segment_length)
    padding = num_segments * segment_length - length
    token_ids = ops.pad(token_ids, [[0, 0], [0, padding]])

    def body(start: Any, state: Any) -> tuple[Any, Any]:
        segment = ops.slice(token_ids, [0, start], [num_rows, segment_length])
        return start + segment_length, read_segment(start, segment, state)

    end = length if num_read is None else num_read
    if is_on_jax():
        # JAX differentiates loops of a fixed length only.
        def turn(index: Any, state: Any) -> Any:
            start = index * segment_length
            return ops.cond(start < end, lambda: body(start, state)[1], lambda: state)

        return ops.fori_loop(0, num_segments, turn, state)
    _, state = ops.while_loop(
        lambda start, _: start < end,
        body,
        (ops.zeros((), "int32"), state),
        # XLA needs a limit to differentiate a loop.
        maximum_iterations=num_segments,
    )
    return state
