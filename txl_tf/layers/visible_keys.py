"""Keys that each query may attend to, in the forms that attention needs.

Shape letters used in this module: B rows, T tokens, M memory length, P places of memory, K = P + T
key length, J = K + 1 columns of distances.
"""

import dataclasses
from typing import Any

from keras import ops

from txl_tf import functional


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class VisibleKeys:
    """Keys that each query may attend to: from its first one to the query itself.

    Attributes:
        num_tokens: int or int32 tensor. `T`.
        memory_length: int. `M`, the most tokens that are remembered.
        num_unused: int. Places at the front of memory that are never filled, `P - M`.
        valid_length: optional int32 tensor `(B,)`. Filled places of memory; by default all `M`.
        farthest: optional int. Largest distance that a query sees.
        document_starts: optional bool tensor `(B, T)`, true for the first token of each document;
            keys before it are hidden.
        segment_length: optional int. Tokens of a segment, if the `T` tokens are several segments;
            each segment is masked as if it were read alone.
        lengths: optional int32 tensor `(B,)` or `()`. Tokens of each row that enter memory; by
            default all.
    """

    num_tokens: Any
    memory_length: int
    num_unused: int = 0
    valid_length: Any = None
    farthest: int | None = None
    document_starts: Any = None
    segment_length: int | None = None
    lengths: Any = None

    @property
    def num_places(self) -> int:
        """Places of memory, `P`."""
        return self.memory_length + self.num_unused

    @property
    def differs_by_query(self) -> bool:
        """True if first keys differ by query for another reason than `farthest`."""
        is_one_segment = self.segment_length is None or (
            isinstance(self.num_tokens, int) and self.num_tokens <= self.segment_length
        )
        return self.document_starts is not None or not is_one_segment

    def first_keys(self, with_farthest: bool = True) -> Any:
        """Returns the index of each query's first key, int32 `(B, T)`; `B` or `T` may be 1."""
        queries = ops.expand_dims(ops.arange(self.num_tokens, dtype="int32"), 0)  # [1, T]
        first = ops.zeros((1, 1), "int32") + self.num_unused
        if self.valid_length is not None:
            first = ops.expand_dims(self.num_places - ops.cast(self.valid_length, "int32"), 1)
        if with_farthest and self.farthest is not None:
            first = ops.maximum(first, queries + (self.num_places - self.farthest))
        if self.document_starts is not None:
            # Where each token's document begins, [B, T]; -2**30 if in memory.
            positions = ops.arange(ops.shape(self.document_starts)[1], dtype="int32")
            is_before = ops.expand_dims(positions, 0) <= ops.expand_dims(positions, 1)  # [T, T]
            is_start = ops.logical_and(ops.expand_dims(self.document_starts, 1), is_before)
            latest = ops.max(ops.where(is_start, positions, -(2**30)), axis=2)
            first = ops.maximum(first, latest + self.num_places)
        if self.differs_by_query and self.segment_length is not None:
            # Each segment's memory begins later by the tokens of the call before that segment.
            of_segments = queries // self.segment_length * self.segment_length
            first = ops.maximum(first, of_segments + self.num_unused)
        return first

    def mask_over_distances(self, dtype: Any) -> Any:
        """Returns scores that hide all other keys, `(B, 1, T, J)` over distances.

        They are 0 where attention is allowed and very negative elsewhere. Column `j` belongs to the
        key `t - T + j` of query `t`. `B` may be 1.
        """
        key_length = self.num_places + self.num_tokens
        scores = mask_of_first_keys(self.first_keys(), self.num_tokens, key_length, dtype)
        return ops.expand_dims(scores, 1)

    def mask_over_keys(self) -> Any:
        """Returns true where attention is allowed, bool `(B, 1, T, K)`; `B` may be 1."""
        return ops.equal(functional.shift_padded(self.mask_over_distances("float32")), 0)

    def next_valid_length(self) -> Any:
        """Returns the filled places after these tokens, int32 `(B,)`."""
        num_read = self.num_tokens if self.lengths is None else self.lengths
        return functional.next_valid_length(
            self.valid_length, self.memory_length, num_read, self.document_starts
        )


def mask_of_first_keys(first_keys: Any, num_tokens: Any, key_length: Any, dtype: Any) -> Any:
    """Returns scores over distances `(B, T, J)` that hide the keys before the first `(B, T)`."""
    queries = ops.arange(num_tokens, dtype="int32")
    first_columns = first_keys + (num_tokens - queries)  # [B, T]
    # Built from ranges: compilers compute it where it is used and store no matrix.
    columns = ops.arange(key_length + 1, dtype="int32")
    mask = columns >= ops.expand_dims(first_columns, 2)
    return functional.mask_scores(ops.zeros((), dtype), mask)
