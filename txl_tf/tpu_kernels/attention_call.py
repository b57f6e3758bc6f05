"""Attention kernels as operations of a TensorFlow program, with their gradient.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width.
"""

from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from txl_tf.tpu_kernels.attention_export import Direction, exported
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.inference_plan import InferencePlan

_VERSION = 10  # of the operation that calls programs of JAX, the one that TensorFlow 2.20 has


def attend(
    plan: AttentionPlan,
    platform: str,
    first_keys: Any,
    hash_keys: Any,
    query: Any,
    key: Any,
    value: Any,
    distances: Any,
    biases: Any,
) -> Any:
    """Computes attention over segment and memory without scores in memory.

    Args:
        plan: `AttentionPlan`.
        platform: str. `tpu`, or `cpu` to run the kernel as plain operations.
        first_keys: int32 tensor `(B,)`, or `(B, T)` where the plan has starts of queries. The first
            key that a query may see.
        hash_keys: int32 tensor `(2, B)` from `hashed_bits.random_keys`. What dropout draws from.
        query: float tensor `(B, T, N * H)`, not divided by anything.
        key: float tensor `(B, K, N * H)`.
        value: float tensor `(B, K, N * H)`.
        distances: float tensor `(K, N * H)`; row `j` is the key of the distance `K - 1 - j`.
        biases: float32 tensor `(2, N * H)`: of contents and of positions.

    Returns:
        Float tensor `(B, T, N * H)`. Gradients flow into the last five arguments.
    """

    @tf.custom_gradient
    def run(*differentiated: Any) -> Any:
        inputs = (first_keys, hash_keys, *differentiated)
        attended, log_sums = _call(plan, "forward", platform, inputs)

        def gradients_of(gradient: Any) -> list[Any]:
            return _call(plan, "backward", platform, (*inputs, attended, log_sums, gradient))

        return attended, gradients_of

    return run(query, key, value, distances, biases)


def attend_in_inference(
    plan: InferencePlan,
    platform: str,
    first_keys: Any,
    segment: tuple[Any, Any, Any],
    memory: tuple[Any, Any],
    distances: Any,
    biases: Any,
) -> list[Any]:
    """Computes attention over a segment and a memory of keys and values, and moves memory on.

    Args:
        plan: `InferencePlan`.
        platform: as in `attend`.
        first_keys: as in `attend`, counted from the first place of memory.
        segment: tuple of queries, not divided by anything, keys and values, float tensors
            `(B, T, N * H)`.
        memory: tuple of keys and values, float tensors `(B, P, N * H)`.
        distances: float tensor `(R, N * H)`; row `j` is the key of the distance
            `plan.padded_key_length - 1 - j`, and no key of any after the distance 0.
        biases: as in `attend`.

    Returns:
        List of float tensors: what was attended to `(B, T, N * H)` and, where the plan writes
        memory, its next keys and values.
    """
    return _call(plan, "inference", platform, (first_keys, *segment, *memory, distances, biases))


def _call(
    plan: AttentionPlan, direction: Direction, platform: str, arguments: tuple[Any, ...]
) -> list[Any]:
    program = exported(plan, direction, platform)
    # The CPU is what programs for a TPU are lowered on where there is none.
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
