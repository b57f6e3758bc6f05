"""Attention that keeps all scores on the chip of a TPU: the entry to the kernels of this folder.

Shape letters used in this module: B rows, T tokens, P places of memory, K = P + T key length, N
heads, H head width, S rows of a kernel's table of distances.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from txl_tf import functional
from txl_tf.stateless_random import random_keys
from txl_tf.tpu_kernels.attention_plan import AttentionKernel, AttentionPlan
from txl_tf.tpu_kernels.inference_plan import InferencePlan, places_of


@dataclasses.dataclass(frozen=True)
class OnChipAttention:
    """Operator that computes attention by a kernel for TPUs, mainly for long memories.

    Moving scores `(B, N, T, K)` through the memory of a TPU takes longer than all arithmetic. The
    kernel computes them tile by tile, and in inference it also writes the next memory. In a memory
    for the kernel, keys and values are `(B, P, N * H)`, which need no transposition. Its first
    places may be unused, because whole tiles are moved faster. This is an `AttentionOperator` for
    layers of the class `RelativeAttention`. The number of rows must be known.
    """

    kernel: AttentionKernel

    def num_places(self, memory_length: int) -> int:
        """Returns the places of a memory that remembers `memory_length` tokens."""
        return places_of(memory_length)

    def part_tokens(self, num_tokens: int, segment_length: int) -> int:
        """Returns how many of `T` tokens attend together, which are all."""
        return num_tokens

    def arranged(self, keys: Any, values: Any) -> Any:
        """Arranges keys and values `(B, P, N, H)` as memory holds them."""
        return [ops.reshape(each, [*each.shape[:2], -1]) for each in (keys, values)]

    def bind(self, visible: Any, dtype: Any) -> Any:
        """Returns the function that attends to some `VisibleKeys`, in a compute dtype."""
        num_tokens = visible.num_tokens
        first_keys = visible.first_keys(with_farthest=False)

        def attend(
            layer: Any, projections: Any, dropout_seed: Any = None, training: bool = False
        ) -> tuple[Any, Any]:
            # This module needs JAX, which programs without the kernel do not have.
            from txl_tf.tpu_kernels import attention_call

            num_rows = projections.query.shape[0]
            sizes = {
                "num_rows": num_rows,
                "segment_length": num_tokens,
                "memory_length": visible.num_places,
                "num_heads": layer.num_heads,
                "head_dim": layer.head_dim,
                "score_scale": layer.score_scale,
                "dtype": keras.backend.standardize_dtype(projections.query.dtype),
                "farthest": visible.farthest,
                "has_query_starts": visible.differs_by_query,
                "kernel": self.kernel,
            }
            length = num_tokens if visible.differs_by_query else 1
            firsts = ops.broadcast_to(first_keys, [num_rows, length])
            firsts = firsts if visible.differs_by_query else firsts[:, 0]
            biases = _side_by_side(projections.content_bias, projections.position_bias)
            table = _table(projections.distances)
            of_segment = projections.query, projections.key, projections.value
            if projections.kept is None:
                dropout, hash_keys = _dropout(layer, num_rows, dropout_seed, training)
                plan = AttentionPlan(**sizes, dropout=dropout)
                attended = attention_call.attend(
                    plan, firsts, hash_keys, *of_segment, table, biases
                )
                return attended, None
            plan = InferencePlan(**sizes)
            before = plan.padded_key_length - table.shape[0]
            after = plan.table_length - plan.padded_key_length
            table = ops.pad(table, [[before, after], [0, 0]])
            attended, *memory = attention_call.attend_in_inference(
                plan, firsts, *of_segment, *projections.kept, table, biases
            )
            if visible.lengths is not None or not plan.writes_memory:
                memory = _remembered(projections, visible)
            return attended, memory

        return attend


def _table(distances: Any) -> Any:
    """Returns the keys of distances in the layout of the kernel, `(K, N * H)`.

    The layer has them as `(N, H, K + 1)`, where column 0 belongs to no distance.
    """
    by_distance = ops.transpose(distances.keys[..., 1:], [2, 0, 1])
    return ops.reshape(by_distance, [by_distance.shape[0], -1])


def _side_by_side(*biases: Any) -> Any:
    """Returns both biases `(N, H)` in the layout of the kernel, float32 `(2, N * H)`."""
    return ops.stack([ops.reshape(ops.cast(bias, "float32"), [-1]) for bias in biases])


def _dropout(layer: Any, num_rows: int, seed: Any, training: bool) -> tuple[float, Any]:
    """Returns the rate of dropout, and the random keys of the rows, int32 `(2, B)`."""
    if not training or layer.dropout == 0:
        return 0.0, ops.zeros((2, num_rows), "int32")
    seeds = layer.probability_dropout.seeds_of_rows(num_rows, seed)
    return layer.dropout, ops.cast(ops.stack(random_keys(seeds)), "int32")


def _remembered(projections: Any, visible: Any) -> list[Any]:
    """Returns the last places of keys and values of memory and segment."""
    return [
        functional.last_positions(
            ops.concatenate(pair, axis=1), 1, visible.lengths, visible.num_places
        )
        for pair in zip(projections.kept, (projections.key, projections.value), strict=True)
    ]
