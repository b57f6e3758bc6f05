"""Attention kernels as operations of a TensorFlow program, with padding and gradients.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width; in inference P places of memory, R rows of the table of distances.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax._src import tpu_custom_call
from tensorflow.compiler.tf2xla.python import xla

from txl_tf.tpu_kernels import attention_kernels
from txl_tf.tpu_kernels.attention_plan import AttentionPlan, InferencePlan
from txl_tf.tpu_kernels.attention_tile import first_keys_of_tiles, row_scalars

Direction = Literal["forward", "backward", "inference"]

# The version that libtpu 0.0.31 of TensorFlow 2.20 reads. JAX 0.10.2 writes a later one, which does
# not differ for these kernels.
_KERNEL_VERSION = 9
_VERSION = 10  # of the operation that calls JAX programs, in TensorFlow 2.20


def attend(
    plan: AttentionPlan, platform: str, first_keys: Any, hash_keys: Any, *differentiated: Any
) -> Any:
    """Computes attention over segment and memory without scores in memory, `(B, T, N * H)`.

    Arguments are as in `attention_function`; `hash_keys` come from
    `stateless_random.random_keys`, and the biases are of contents and of positions. Gradients flow
    into the others: queries, keys, values, distances and biases. The platform `cpu` runs the
    kernel as plain operations.
    """

    @tf.custom_gradient
    def run(*differentiated: Any) -> Any:
        inputs = (first_keys, hash_keys, *differentiated)
        attended, log_sums = _call(plan, "forward", platform, inputs)

        def gradients_of(gradient: Any) -> list[Any]:
            return _call(plan, "backward", platform, (*inputs, attended, log_sums, gradient))

        return attended, gradients_of

    return run(*differentiated)


def attend_in_inference(
    plan: InferencePlan,
    platform: str,
    first_keys: Any,
    segment: tuple[Any, Any, Any],
    memory: tuple[Any, Any],
    distances: Any,
    biases: Any,
) -> list[Any]:
    """Computes attention over a segment and a memory of keys and values, and the next memory.

    The segment has unscaled queries, keys and values `(B, T, N * H)`, the memory keys and values
    `(B, P, N * H)`. Row `j` of distances `(R, N * H)` is the key of the distance
    `plan.padded_key_length - 1 - j`; rows after the distance 0 are unused. First keys count from
    the first place of memory; the others are as in `attend`. Returns the attended values
    `(B, T, N * H)` and, where the plan writes memory, its next keys and values.
    """
    return _call(plan, "inference", platform, (first_keys, *segment, *memory, distances, biases))


def _call(
    plan: AttentionPlan, direction: Direction, platform: str, arguments: tuple[Any, ...]
) -> list[Any]:
    program = exported(plan, direction, platform)
    # Programs for a TPU are lowered on a CPU if the machine has no TPU.
    disabled = ["platform"] if platform == "tpu" else []
    return xla.call_module(
        list(arguments),
        version=_VERSION,
        module=program.mlir_module_serialized,
        Tout=[tf.as_dtype(result.dtype) for result in program.out_avals],
        Sout=[list(result.shape) for result in program.out_avals],
        platforms=[platform.upper()],
        disabled_checks=disabled,
    )


@functools.cache
def exported(plan: AttentionPlan, direction: Direction, platform: str) -> Any:
    """Exports one pass of attention, the function of `attention_function` or `inference_function`.

    The platform is `tpu`, or `cpu`, where the kernel runs as plain operations.
    """
    # Nothing is computed here, and TensorFlow owns the TPU.
    jax.config.update("jax_platforms", "cpu")
    is_interpreted = platform != "tpu"
    if isinstance(plan, InferencePlan):
        function, shapes = inference_function(plan, is_interpreted), inference_shapes(plan)
    else:
        function = attention_function(plan, direction, is_interpreted)
        shapes = argument_shapes(plan, direction)
    arguments = [jax.ShapeDtypeStruct(*each) for each in shapes]
    # Programs are cached and compared, so they have no paths of this machine.
    without_paths = jax._src.config.traceback_in_locations_limit(0)
    with _readable_by_libtpu(), without_paths, jax.enable_x64(False):
        return jax.export.export(jax.jit(function), platforms=[platform])(*arguments)


def argument_shapes(plan: AttentionPlan, direction: Direction) -> list[tuple[Any, str]]:
    """Returns shape and dtype of each argument."""
    rows, width = plan.num_rows, plan.num_heads * plan.head_dim
    queries = (rows, plan.segment_length, width), plan.dtype
    keys = (rows, plan.key_length, width), plan.dtype
    first_keys = ((rows, plan.segment_length) if plan.has_query_starts else (rows,)), "int32"
    shapes: list[tuple[Any, str]] = [first_keys, ((2, rows), "int32"), queries, keys, keys]
    shapes += [((plan.key_length, width), plan.dtype), ((2, width), "float32")]
    if direction == "backward":
        shapes += [queries, (_log_sums_shape(plan), "float32"), queries]
    return shapes


def _log_sums_shape(plan: AttentionPlan) -> tuple[int, ...]:
    tiles = plan.num_query_blocks, plan.num_groups, plan.heads_per_group
    return plan.num_rows, *tiles, plan.block_queries


def attention_function(
    plan: AttentionPlan, direction: Direction, is_interpreted: bool = False
) -> Callable[..., Any]:
    """Makes one pass of attention as a function of arrays without padding.

    It takes the first visible keys, int32 `(B,)` or with starts of queries `(B, T)`; the keys of
    the hash, int32 `(2, B)`; unscaled queries `(B, T, N * H)`; keys and values `(B, K, N * H)`;
    distances `(K, N * H)`, row `j` for the distance `K - 1 - j`; and float32 biases `(2, N * H)`.
    `forward` returns the attended values `(B, T, N * H)` and the logarithms of sums for the
    backward pass. `backward` also takes both and the gradient of the first, and returns the
    gradients of queries, keys, values, distances and biases.
    """
    make = attention_kernels.forward if direction == "forward" else attention_kernels.backward
    kernel = make(plan, is_interpreted)
    num_before = plan.padded_memory_length - plan.memory_length

    def padded_queries(array: Any) -> Any:
        return _padded(array, plan.padded_segment_length)

    def padded_inputs(
        first_keys: Any,
        hash_keys: Any,
        query: Any,
        key: Any,
        value: Any,
        distances: Any,
        biases: Any,
    ) -> list[Any]:
        # Row `j` of the table is the distance `padded K - 1 - j`; later rows have no key.
        before = plan.padded_key_length - plan.key_length
        after = plan.table_length - before - plan.key_length
        arrays = [padded_queries(query)]
        arrays += [_padded(each, plan.padded_key_length, num_before) for each in (key, value)]
        arrays += [jnp.pad(distances, [(before, after), (0, 0)]), biases]
        first_keys = first_keys + num_before
        of_tiles = first_keys_of_tiles(plan, first_keys)
        arrays += [of_tiles] if plan.has_query_starts else []
        return [row_scalars(plan, first_keys, of_tiles, hash_keys), *arrays]

    def forward(first_keys: Any, hash_keys: Any, *arrays: Any) -> Any:
        attended, log_sums = kernel(*padded_inputs(first_keys, hash_keys, *arrays))
        return attended[:, : plan.segment_length], log_sums

    def backward(first_keys: Any, hash_keys: Any, *arrays: Any) -> Any:
        inputs, (attended, log_sums, gradient) = arrays[:-3], arrays[-3:]
        of_query, *of_keys, of_distances, of_biases = kernel(
            *padded_inputs(first_keys, hash_keys, *inputs),
            padded_queries(attended),
            log_sums,
            padded_queries(gradient),
        )
        of_keys = [each[:, num_before : num_before + plan.key_length] for each in of_keys]
        first = plan.padded_key_length - plan.key_length
        of_distances = of_distances[first : first + plan.key_length]
        return of_query[:, : plan.segment_length], *of_keys, of_distances, of_biases

    return forward if direction == "forward" else backward


def inference_function(plan: InferencePlan, is_interpreted: bool = False) -> Callable[..., Any]:
    """Makes the kernel as a function of arrays without padding, with the kernel's results.

    It takes the first visible keys, int32 `(B,)` or with starts of queries `(B, T)`; queries,
    keys and values of the segment `(B, T, N * H)`; keys and values of memory `(B, P, N * H)`;
    distances `(R, N * H)`; and float32 biases `(2, N * H)`.
    """
    kernel = attention_kernels.inference_kernel(plan, is_interpreted)

    def run(
        first_keys: Any,
        query: Any,
        key: Any,
        value: Any,
        memory_key: Any,
        memory_value: Any,
        distances: Any,
        biases: Any,
    ) -> Any:
        of_tiles = first_keys_of_tiles(plan, first_keys)
        nothing_drawn = jnp.zeros((2, plan.num_rows), jnp.int32)
        scalars = row_scalars(plan, first_keys, of_tiles, nothing_drawn)
        segment = [_padded(each, plan.segment_key_length) for each in (key, value)]
        arrays = [_padded(query, plan.padded_segment_length), *segment]
        arrays += [memory_key, memory_value, distances, biases]
        arrays += [of_tiles] if plan.has_query_starts else []
        attended, *next_memory = kernel(scalars, *arrays)
        return attended[:, : plan.segment_length], *next_memory

    return run


def inference_shapes(plan: InferencePlan) -> list[tuple[Any, str]]:
    """Returns shape and dtype of each argument of `inference_function`."""
    rows, width = plan.num_rows, plan.num_heads * plan.head_dim
    first_keys = (rows, plan.segment_length) if plan.has_query_starts else (rows,)
    segment = (rows, plan.segment_length, width), plan.dtype
    memory = (rows, plan.memory_length, width), plan.dtype
    table = (plan.table_length, width), plan.dtype
    shapes: list[tuple[Any, str]] = [(first_keys, "int32"), segment, segment, segment]
    return [*shapes, memory, memory, table, ((2, width), "float32")]


def _padded(array: Any, length: int, num_before: int = 0) -> Any:
    num_after = length - num_before - array.shape[1]
    return jnp.pad(array, [(0, 0), (num_before, num_after), (0, 0)])


@contextlib.contextmanager
def _readable_by_libtpu() -> Iterator[None]:
    """Writes kernels in the version that the pinned TPU library reads."""
    default = tpu_custom_call._FWD_COMPAT_VERSION
    tpu_custom_call._FWD_COMPAT_VERSION = _KERNEL_VERSION
    try:
        yield
    finally:
        tpu_custom_call._FWD_COMPAT_VERSION = default
