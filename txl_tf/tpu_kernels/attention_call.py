"""Attention kernels as operations of a TensorFlow program, with gradients.

Shape letters used in this module: B rows, T segment length, M memory length, K = M + T key
length, N heads, H head width.
"""

from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from txl_tf.tpu_kernels.attention_export import Direction, exported
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.inference_plan import InferencePlan

_VERSION = 10  # of the operation that calls JAX programs, in TensorFlow 2.20


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
    """Computes attention over segment and memory without scores in memory, `(B, T, N * H)`.

    Arguments are as in `attention_export.attention_function`; `hash_keys` come from
    `hashed_bits.random_keys`, and the biases are of contents and of positions. Gradients flow
    into the last five arguments. The platform `cpu` runs the kernel as plain operations.
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
