"""Keys that queries may see, as numbers instead of a matrix.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from txl_tf.stateless_random import random_keys
from txl_tf.tpu_kernels.attention_plan import AttentionPlan, InferencePlan
from txl_tf.tpu_kernels.kernel_choice import AttentionKernel


@dataclasses.dataclass(frozen=True, eq=False)
class VisibleKeys:
    """Replacement of the attention mask for kernels, in which a query sees its first key to itself.

    Attributes:
        kernel: `AttentionKernel`.
        memory_length: int. `M`, places of memory.
        valid_length: int32 tensor `(B,)`. Filled positions of memory.
        farthest: optional int. Largest distance that a query sees.
        document_starts: optional bool tensor `(B, T)`, see `functional.same_document_mask`.
        segment_length: optional int. Tokens of a segment, where `T` tokens are several segments:
            each forgets the same tokens as in separate reads.
        num_unused: int. Unused places at the front of memory.
    """

    kernel: AttentionKernel
    memory_length: int
    valid_length: Any
    farthest: int | None = None
    document_starts: Any = None
    segment_length: int | None = None
    num_unused: int = 0

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        distances: Any,
        biases: Sequence[Any],
        dropout: float,
        seeds: Any,
    ) -> Any:
        """Attends by the kernel to keys and values of memory and segment; with gradients.

        Queries are `(B, T, N * H)`, keys and values `(B, K, N * H)`, distances `(K, N * H)`, and
        both biases `(N, H)`. Seeds of dropout are `(B, 2)`, or `None` without. Returns
        `(B, T, N * H)`.
        """
        # Imported here, as it needs TensorFlow and JAX.
        from txl_tf.tpu_kernels.attention_call import attend

        num_rows, num_tokens, _ = query.shape
        hash_keys = ops.zeros((2, num_rows), "int32")
        if seeds is not None:
            hash_keys = ops.cast(ops.stack(random_keys(seeds)), "int32")
        num_heads = biases[0].shape[0]
        return attend(
            AttentionPlan(**self._sizes(query, num_heads), dropout=dropout),
            self.kernel.platform,
            self.first_keys(num_tokens),
            hash_keys,
            query,
            key,
            value,
            distances,
            side_by_side(biases),
        )

    def inference_plan(self, query: Any, num_heads: int) -> InferencePlan:
        """Makes the plan of the inference kernel, which reads memory and segment separately."""
        return InferencePlan(**self._sizes(query, num_heads))

    def _sizes(self, query: Any, num_heads: int) -> dict[str, Any]:
        num_rows, num_tokens, width = query.shape
        return {
            "num_rows": num_rows,
            "segment_length": num_tokens,
            "memory_length": self.memory_length,
            "num_heads": num_heads,
            "head_dim": width // num_heads,
            "dtype": keras.backend.standardize_dtype(query.dtype),
            "farthest": self.farthest,
            "has_query_starts": self._has_query_starts(num_tokens),
            **self.kernel.of_plans,
        }

    def _has_query_starts(self, num_tokens: int) -> bool:
        is_one_segment = self.segment_length in (None, num_tokens)
        return self.document_starts is not None or not is_one_segment

    def first_keys(self, num_tokens: int) -> Any:
        """Returns the first key that queries may see.

        Int32 `(B,)`, or `(B, T)` with documents or several segments.
        """
        first = self.memory_length - ops.cast(self.valid_length, "int32")
        if not self._has_query_starts(num_tokens):
            return first
        first = ops.expand_dims(first, 1)
        if self.document_starts is not None:
            starts = _latest_starts(self.document_starts)  # [B, T]
            first = ops.maximum(first, starts + self.memory_length)
        if self.segment_length is not None:
            queries = ops.arange(num_tokens, dtype="int32")
            # The memory of a later segment begins later by the number of tokens before the segment.
            of_segments = queries // self.segment_length * self.segment_length
            first = ops.maximum(first, ops.expand_dims(of_segments + self.num_unused, 0))
        return first


def side_by_side(biases: Sequence[Any]) -> Any:
    """Returns both biases `(N, H)` in the layout of the kernel, float32 `(2, N * H)`."""
    return ops.stack([ops.reshape(ops.cast(bias, "float32"), [-1]) for bias in biases])


def _latest_starts(document_starts: Any) -> Any:
    """Returns where the document of each token `(B, T)` begins in the segment.

    The positions are int32 `(B, T)`; a document that begins in memory gets a number before all of
    memory.
    """
    positions = ops.arange(document_starts.shape[1], dtype="int32")
    is_before = ops.expand_dims(positions, 0) <= ops.expand_dims(positions, 1)  # [T, T]
    is_start = ops.logical_and(ops.expand_dims(document_starts, 1), is_before)  # [B, T, T]
    return ops.max(ops.where(is_start, positions, -(2**30)), axis=2)
