"""Scalars of rows and tiles for the attention kernels.

Shape letters used in this module: B rows, T segment length, A queries of a tile.
"""

from typing import Any

from jax import numpy as jnp

from txl_tf.tpu_kernels.attention_plan import AttentionPlan


def first_keys_of_tiles(plan: AttentionPlan, first_keys: Any) -> Any:
    """Spreads the first visible keys over tiles of queries: int32 `(B, T / A, 1, A)`, padded.

    They are int32 `(B,)`, or `(B, T)` where queries have their own starts, and count the padding
    of memory.
    """
    if plan.has_query_starts:
        # Padding queries see themselves and the keys of the last query.
        edges = [(0, 0), (0, plan.padded_segment_length - plan.segment_length)]
        of_queries = jnp.pad(first_keys, edges, mode="edge")
    else:
        of_queries = jnp.broadcast_to(
            first_keys[:, None], (plan.num_rows, plan.padded_segment_length)
        )
    tiles = plan.num_rows, plan.num_query_blocks, 1, plan.block_queries
    return jnp.reshape(of_queries, tiles)


def row_scalars(plan: AttentionPlan, first_keys: Any, of_tiles: Any, hash_keys: Any) -> Any:
    """Concatenates the scalars of all rows for `KernelProgram`, int32 `(B * (3 + T / A))`.

    A row has the first key, both keys of the hash `(2, B)` and, for each tile of queries, the
    first key that any of them sees.
    """
    of_tiles = of_tiles[..., 0, 0]
    if plan.farthest is not None:
        queries = jnp.arange(plan.num_query_blocks) * plan.block_queries
        nearest = queries + (plan.padded_memory_length - plan.farthest)
        of_tiles = jnp.maximum(of_tiles, nearest.astype(jnp.int32)[None])
    first = first_keys[:, :1] if plan.has_query_starts else first_keys[:, None]
    scalars = jnp.concatenate([first, jnp.transpose(hash_keys), of_tiles], axis=1)
    return jnp.reshape(scalars, [-1])
