"""Keys that queries may see, as numbers in place of a matrix.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.kernel_choice import AttentionKernel


@dataclasses.dataclass(frozen=True, eq=False)
class VisibleKeys:
    """What stands for an attention mask where a kernel attends.

    A query sees the keys from its first one to itself.

    Attributes:
        kernel: `AttentionKernel`.
        memory_length: int. `M`.
        valid_length: int32 tensor `(B,)`. Filled positions of memory.
        farthest: optional int. Largest distance that a query sees.
        document_starts: optional bool tensor `(B, T)`, see `functional.same_document_mask`.
    """

    kernel: AttentionKernel
    memory_length: int
    valid_length: Any
    farthest: int | None = None
    document_starts: Any = None

    def plan(self, query: Any, num_heads: int, dropout: float) -> AttentionPlan:
        """Makes the plan of the kernel for queries `(B, T, N * H)`."""
        num_rows, segment_length, width = query.shape
        return AttentionPlan(
            num_rows=num_rows,
            segment_length=segment_length,
            memory_length=self.memory_length,
            num_heads=num_heads,
            head_dim=width // num_heads,
            dtype=keras.backend.standardize_dtype(query.dtype),
            dropout=dropout,
            farthest=self.farthest,
            masks_documents=self.document_starts is not None,
            rounds_products=self.kernel.rounds_products,
            has_strided_rolls=self.kernel.has_strided_rolls,
            max_block_queries=self.kernel.max_block_queries,
            max_block_keys=self.kernel.max_block_keys,
        )

    def first_keys(self) -> Any:
        """Returns the first key that queries may see.

        Returns:
            Int32 tensor `(B,)`, or `(B, T)` with documents.
        """
        first = self.memory_length - ops.cast(self.valid_length, "int32")
        if self.document_starts is None:
            return first
        starts = _latest_starts(self.document_starts)  # [B, T]
        return ops.maximum(ops.expand_dims(first, 1), starts + self.memory_length)


def _latest_starts(document_starts: Any) -> Any:
    """Computes where in the segment the document of each token begins.

    Args:
        document_starts: bool tensor `(B, T)`.

    Returns:
        Int32 tensor `(B, T)`: positions in the segment; a number before all memory where the
        document is that of the memory.
    """
    positions = ops.arange(document_starts.shape[1], dtype="int32")
    is_before = ops.expand_dims(positions, 0) <= ops.expand_dims(positions, 1)  # [T, T]
    is_start = ops.logical_and(ops.expand_dims(document_starts, 1), is_before)  # [B, T, T]
    return ops.max(ops.where(is_start, positions, -(2**30)), axis=2)
