"""Attention kernels with padding around them, exported as programs that TensorFlow can call.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax._src import tpu_custom_call

from txl_tf.tpu_kernels import attention_kernels
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.inference_kernel import inference_function, inference_shapes
from txl_tf.tpu_kernels.inference_plan import InferencePlan
from txl_tf.tpu_kernels.row_scalars import first_keys_of_tiles, row_scalars

Direction = Literal["forward", "backward", "inference"]

# The version that libtpu 0.0.31 of TensorFlow 2.20 reads. JAX 0.10.2 writes a later one, which does
# not differ for these kernels.
_KERNEL_VERSION = 9


@functools.cache
def exported(plan: AttentionPlan, direction: Direction, platform: str) -> Any:
    """Exports one pass of attention, the function of `attention_function` or `inference_function`.

    The platform is `tpu`, or `cpu`, where the kernel runs as plain operations.
    """
    # Nothing is computed here, and TensorFlow owns the TPU.
    jax.config.update("jax_platforms", "cpu")
    with _readable_by_libtpu(), _without_source_paths(), jax.enable_x64(False):
        return _export(plan, direction, platform)


def _export(plan: AttentionPlan, direction: Direction, platform: str) -> Any:
    is_interpreted = platform != "tpu"
    if isinstance(plan, InferencePlan):
        function, shapes = inference_function(plan, is_interpreted), inference_shapes(plan)
    else:
        function = attention_function(plan, direction, is_interpreted)
        shapes = argument_shapes(plan, direction)
    arguments = [jax.ShapeDtypeStruct(*each) for each in shapes]
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
    kernels = {"forward": attention_kernels.forward, "backward": attention_kernels.backward}
    kernel = kernels[direction](plan, is_interpreted)
    padding = _Padding(plan)

    def forward(first_keys: Any, hash_keys: Any, *arrays: Any) -> Any:
        attended, log_sums = kernel(*padding.inputs(first_keys, hash_keys, *arrays))
        return padding.without_queries(attended), log_sums

    def backward(first_keys: Any, hash_keys: Any, *arrays: Any) -> Any:
        inputs, (attended, log_sums, gradient) = arrays[:-3], arrays[-3:]
        of_query, of_key, of_value, of_distances, of_biases = kernel(
            *padding.inputs(first_keys, hash_keys, *inputs),
            padding.queries(attended),
            log_sums,
            padding.queries(gradient),
        )
        of_keys = map(padding.without_keys, (of_key, of_value))
        first = plan.padded_key_length - plan.key_length
        of_distances = of_distances[first : first + plan.key_length]
        return padding.without_queries(of_query), *of_keys, of_distances, of_biases

    return forward if direction == "forward" else backward


class _Padding:
    """Zero padding of the arrays of a plan."""

    def __init__(self, plan: AttentionPlan) -> None:
        self._plan = plan
        self.num_after = plan.padded_segment_length - plan.segment_length
        self._num_before = plan.padded_memory_length - plan.memory_length

    def inputs(
        self,
        first_keys: Any,
        hash_keys: Any,
        query: Any,
        key: Any,
        value: Any,
        distances: Any,
        biases: Any,
    ) -> list[Any]:
        """Returns the arguments of a kernel."""
        plan = self._plan
        # Row `j` of the table is the distance `padded K - 1 - j`; later rows have no key.
        before = plan.padded_key_length - plan.key_length
        after = plan.table_length - before - plan.key_length
        arrays = [self.queries(query), self.keys(key), self.keys(value)]
        arrays += [jnp.pad(distances, [(before, after), (0, 0)]), biases]
        first_keys = first_keys + self._num_before
        of_tiles = first_keys_of_tiles(plan, first_keys)
        if plan.has_query_starts:
            arrays.append(of_tiles)
        return [row_scalars(plan, first_keys, of_tiles, hash_keys), *arrays]

    def queries(self, array: Any) -> Any:
        return jnp.pad(array, [(0, 0), (0, self.num_after), (0, 0)])

    def keys(self, array: Any) -> Any:
        return jnp.pad(array, [(0, 0), (self._num_before, self.num_after), (0, 0)])

    def without_queries(self, array: Any) -> Any:
        return array[:, : self._plan.segment_length]

    def without_keys(self, array: Any) -> Any:
        return array[:, self._num_before : self._num_before + self._plan.key_length]


@contextlib.contextmanager
def _readable_by_libtpu() -> Iterator[None]:
    """Writes kernels in the version that the pinned TPU library reads."""
    default = tpu_custom_call._FWD_COMPAT_VERSION
    tpu_custom_call._FWD_COMPAT_VERSION = _KERNEL_VERSION
    try:
        yield
    finally:
        tpu_custom_call._FWD_COMPAT_VERSION = default


@contextlib.contextmanager
def _without_source_paths() -> Iterator[None]:
    """Removes this machine's paths from programs, which are cached and compared."""
    with jax._src.config.traceback_in_locations_limit(0):
        yield
