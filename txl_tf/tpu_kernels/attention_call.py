"""Attention kernels as operations of a program, on JAX and on TensorFlow, with their gradients.

From the top down: `attend` and `attend_in_inference` are the operations; `_call` runs a pass as a
function of JAX, or as a program of JAX inside a program of TensorFlow; `_forward`, `_backward` and
`_inference` pad the arguments of a pass and cut its results; `attention_grid.kernel_of` makes the
kernel itself.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width, G columns of a group of heads, A queries of a tile, R rows of the
table of distances; in inference P places of memory, S keys of the segment with padding.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from txl_tf.imports import is_on_jax, tensorflow as tf
from txl_tf.tpu_kernels.attention_grid import Direction, kernel_of
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.inference_plan import InferencePlan

# Version of the format of kernels that libtpu 0.0.31 of TensorFlow 2.20 reads. JAX 0.10.2 would
# write a later version, which is the same for these kernels.
_KERNEL_VERSION = 9
# Version of the operation of TensorFlow 2.20 that calls JAX programs.
_CALL_VERSION = 10


def attend(plan: AttentionPlan, first_keys: Any, hash_keys: Any, *differentiated: Any) -> Any:
    """Computes attention over segment and memory without scores in memory, `(B, T, N * H)`.

    `first_keys` are the first visible keys, int32 `(B,)`, or `(B, T)` if the plan has starts of
    queries. `hash_keys` come from `stateless_random.random_keys`, int32 `(2, B)`. The other
    arguments are differentiated: unscaled queries `(B, T, N * H)`; keys and values
    `(B, K, N * H)`; distances `(K, N * H)`, row `j` for the distance `K - 1 - j`; and the biases of
    contents and of positions, float32 `(2, N * H)`.
    """
    if is_on_jax():
        return _attend_on_jax(plan, first_keys, hash_keys, *differentiated)

    @tf.custom_gradient
    def run(*differentiated: Any) -> Any:
        inputs = (first_keys, hash_keys, *differentiated)
        attended, log_sums = _call(plan, "forward", inputs)

        def gradients_of(gradient: Any) -> list[Any]:
            return _call(plan, "backward", (*inputs, attended, log_sums, gradient))

        return attended, gradients_of

    return run(*differentiated)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_on_jax(plan: AttentionPlan, *inputs: Any) -> Any:
    return _call(plan, "forward", inputs)[0]


def _attend_and_keep(plan: AttentionPlan, *inputs: Any) -> tuple[Any, Any]:
    attended, log_sums = _call(plan, "forward", inputs)
    return attended, (*inputs, attended, log_sums)


def _gradients_of(plan: AttentionPlan, kept: Any, gradient: Any) -> tuple[Any, ...]:
    # JAX expects an empty gradient for each of the two integer inputs.
    return (
        *(np.zeros(each.shape, jax.dtypes.float0) for each in kept[:2]),
        *_call(plan, "backward", (*kept, gradient)),
    )


_attend_on_jax.defvjp(_attend_and_keep, _gradients_of)


def attend_in_inference(plan: InferencePlan, *arguments: Any) -> list[Any]:
    """Computes attention over a segment and a memory of keys and values, and the next memory.

    The arguments are the first visible keys, which count from the first place of memory; unscaled
    queries, keys and values of the segment `(B, T, N * H)`; keys and values of memory
    `(B, P, N * H)`; distances `(R, N * H)`, row `j` for the distance
    `plan.padded_key_length - 1 - j`, where the rows after the distance 0 are not used; and biases
    as in `attend`. Returns the attended values `(B, T, N * H)` and, if the plan writes memory, the
    keys and values of the next memory.
    """
    return _call(plan, "inference", arguments)


def _call(plan: AttentionPlan, direction: Direction, arguments: tuple[Any, ...]) -> list[Any]:
    if is_on_jax():
        return list(_padded_kernel(plan, direction)(*arguments))
    from tensorflow.compiler.tf2xla.python import xla

    program, platform = exported(plan, direction), plan.kernel.platform
    return xla.call_module(
        list(arguments),
        version=_CALL_VERSION,
        module=program.mlir_module_serialized,
        Tout=[tf.as_dtype(result.dtype) for result in program.out_avals],
        Sout=[list(result.shape) for result in program.out_avals],
        platforms=[platform.upper()],
        # Programs for a TPU are lowered on a CPU if the machine has no TPU.
        disabled_checks=["platform"] if platform == "tpu" else [],
    )


def _padded_kernel(plan: AttentionPlan, direction: Direction) -> Any:
    passes = {"forward": _forward, "backward": _backward, "inference": _inference}
    return functools.partial(passes[direction], plan, kernel_of(plan, direction))


@functools.cache
def exported(plan: AttentionPlan, direction: Direction) -> Any:
    """Exports a pass, which is a kernel and the padding around it, for TensorFlow."""
    from jax._src import tpu_custom_call

    # This sets the version of all kernels that this process writes.
    tpu_custom_call._FWD_COMPAT_VERSION = _KERNEL_VERSION
    # Nothing is computed here, and TensorFlow owns the TPU.
    jax.config.update("jax_platforms", "cpu")
    arguments = [jax.ShapeDtypeStruct(*each) for each in argument_shapes(plan, direction)]
    # Programs are cached and compared, so they must not contain paths of this machine.
    without_paths = jax._src.config.traceback_in_locations_limit(0)
    with without_paths, jax.enable_x64(False):
        return jax.export.export(
            jax.jit(_padded_kernel(plan, direction)), platforms=[plan.kernel.platform]
        )(*arguments)


def argument_shapes(plan: AttentionPlan, direction: Direction) -> list[tuple[Any, str]]:
    """Returns shape and dtype of each argument of a pass.

    The backward pass also takes both results of the forward pass and the gradient of the first one.
    """
    rows, width, table = plan.num_rows, plan.num_heads * plan.head_dim, plan.key_length

    def of_tokens(length: int) -> tuple[Any, str]:
        return (rows, length, width), plan.dtype

    segment, keys = map(of_tokens, (plan.segment_length, plan.key_length))
    inputs: list[tuple[Any, str]] = [((2, rows), "int32"), segment, keys, keys]
    if isinstance(plan, InferencePlan):
        memory, table = of_tokens(plan.memory_length), plan.table_length
        inputs = [segment, segment, segment, memory, memory]
    first_keys = ((rows, plan.segment_length) if plan.has_query_starts else (rows,)), "int32"
    shapes = [first_keys, *inputs, ((table, width), plan.dtype), ((2, width), "float32")]
    if direction == "backward":
        tiles = plan.num_query_blocks, plan.num_groups, plan.heads_per_group, plan.block_queries
        shapes += [segment, ((rows, *tiles), "float32"), segment]
    return shapes


def _forward(plan: AttentionPlan, kernel: Any, *inputs: Any) -> Any:
    attended, log_sums = kernel(*_padded_inputs(plan, *inputs))
    return attended[:, : plan.segment_length], log_sums


def _backward(plan: AttentionPlan, kernel: Any, *arguments: Any) -> Any:
    inputs, (attended, log_sums, gradient) = arguments[:-3], arguments[-3:]
    attended, gradient = (
        _padded(each, plan.padded_segment_length) for each in (attended, gradient)
    )
    of_query, of_key, of_value, of_distances, of_biases = kernel(
        *_padded_inputs(plan, *inputs), attended, log_sums, gradient
    )
    num_before = plan.padded_memory_length - plan.memory_length
    keys = slice(num_before, num_before + plan.key_length)
    first = plan.padded_key_length - plan.key_length
    return (
        of_query[:, : plan.segment_length],
        of_key[:, keys],
        of_value[:, keys],
        of_distances[first : first + plan.key_length],
        of_biases,
    )


def _padded_inputs(
    plan: AttentionPlan,
    first_keys: Any,
    hash_keys: Any,
    query: Any,
    key: Any,
    value: Any,
    distances: Any,
    biases: Any,
) -> list[Any]:
    num_before = plan.padded_memory_length - plan.memory_length
    key, value = (_padded(each, plan.padded_key_length, num_before) for each in (key, value))
    # Row `j` of the table is the distance `padded_key_length - 1 - j`. Rows after the distance 0
    # belong to no key.
    before = plan.padded_key_length - plan.key_length
    distances = jnp.pad(distances, [(before, plan.table_length - before - plan.key_length), (0, 0)])
    arrays = [_padded(query, plan.padded_segment_length), key, value, distances, biases]
    return _with_first_keys(plan, first_keys + num_before, hash_keys, arrays)


def _inference(
    plan: InferencePlan,
    kernel: Any,
    first_keys: Any,
    query: Any,
    key: Any,
    value: Any,
    *others: Any,
) -> Any:
    key, value = (_padded(each, plan.segment_key_length) for each in (key, value))
    arrays = [_padded(query, plan.padded_segment_length), key, value, *others]
    no_hash_keys = jnp.zeros((2, plan.num_rows), jnp.int32)  # nothing is dropped
    attended, *next_memory = kernel(*_with_first_keys(plan, first_keys, no_hash_keys, arrays))
    return attended[:, : plan.segment_length], *next_memory


def _with_first_keys(
    plan: AttentionPlan, first_keys: Any, hash_keys: Any, arrays: list[Any]
) -> list[Any]:
    """Returns the arguments of the kernel: scalars, arrays, and first keys of queries that differ.

    The scalars of a row are its first visible key, both keys of the hash and, for each tile of
    queries, the first key that any of its queries sees.
    """
    padded_length = plan.padded_segment_length
    if plan.has_query_starts:
        # A padding query sees the keys that the last query sees, and the keys up to itself.
        of_queries = jnp.pad(
            first_keys, [(0, 0), (0, padded_length - plan.segment_length)], mode="edge"
        )
    else:
        of_queries = jnp.broadcast_to(first_keys[:, None], (plan.num_rows, padded_length))
    of_tiles = jnp.reshape(
        of_queries, (plan.num_rows, plan.num_query_blocks, 1, plan.block_queries)
    )
    firsts = of_tiles[..., 0, 0]
    if plan.farthest is not None:
        # The farthest key that the first query of each tile sees.
        farthest_keys = jnp.arange(plan.num_query_blocks) * plan.block_queries + (
            plan.padded_memory_length - plan.farthest
        )
        firsts = jnp.maximum(firsts, farthest_keys.astype(jnp.int32)[None])
    scalars = jnp.concatenate([of_queries[:, :1], jnp.transpose(hash_keys), firsts], axis=1)
    return [jnp.reshape(scalars, [-1]), *arrays, *([of_tiles] if plan.has_query_starts else [])]


def _padded(array: Any, length: int, num_before: int = 0) -> Any:
    return jnp.pad(array, [(0, 0), (num_before, length - num_before - array.shape[1]), (0, 0)])
