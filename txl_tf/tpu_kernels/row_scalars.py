"""Numbers of rows and tiles that the attention kernels are given.

Shape letters used in this module: B rows, T segment length, A queries of a tile.
"""

from typing import Any

from jax import numpy as jnp

from txl_tf.tpu_kernels.attention_plan import AttentionPlan


def first_keys_of_tiles(plan: AttentionPlan, first_keys: Any) -> Any:
    """Spreads the first keys that queries see over tiles of queries.

    Args:
        plan: `AttentionPlan`.
        first_keys: int32 `(B,)`, or `(B, T)` where queries have starts of their own. Counted
            with the padding of memory.

    Returns:
        Int32 `(B, T / A, 1, A)`, `T` with padding.
    """
    if plan.has_query_starts:
        # Queries of the padding see themselves and what the last one sees.
        edges = [(0, 0), (0, plan.padded_segment_length - plan.segment_length)]
        of_queries = jnp.pad(first_keys, edges, mode="edge")
    else:
        of_queries = jnp.broadcast_to(
            first_keys[:, None], (plan.num_rows, plan.padded_segment_length)
        )
    tiles = plan.num_rows, plan.num_query_blocks, 1, plan.block_queries
    return jnp.reshape(of_queries, tiles)


def row_scalars(plan: AttentionPlan, first_keys: Any, of_tiles: Any, hash_keys: Any) -> Any:
    """Puts the scalars of all rows one after the other, as `KernelProgram` reads them.

    Args:
        plan: `AttentionPlan`.
        first_keys: as in `first_keys_of_tiles`.
        of_tiles: result of `first_keys_of_tiles`.
        hash_keys: int32 `(2, B)`.

    Returns:
        Int32 `(B * (3 + T / A))`: the first key, both keys of the hash and, for each tile of
        queries, the first key that any of them sees.
    """
    of_tiles = of_tiles[..., 0, 0]
    if plan.farthest is not None:
        queries = jnp.arange(plan.num_query_blocks) * plan.block_queries
        nearest = queries + (plan.padded_memory_length - plan.farthest)
        of_tiles = jnp.maximum(of_tiles, nearest.astype(jnp.int32)[None])
    first = first_keys[:, :1] if plan.has_query_starts else first_keys[:, None]
    scalars = jnp.concatenate([first, jnp.transpose(hash_keys), of_tiles], axis=1)
    return jnp.reshape(scalars, [-1])
