"""Choice between the attention kernel and plain operations, with its reason."""

import dataclasses
import importlib.metadata
from typing import Literal, Self

from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.imports import is_on_jax
from txl_tf.tpu_kernels.attention_plan import AttentionKernel, AttentionPlan
from txl_tf.tpu_kernels.inference_plan import InferencePlan, places_of

# Version of JAX that writes the kernels for TensorFlow, as in the extra `tpu-kernel`.
_JAX_VERSION = "0.10.2"
# Memory on the chip of one core in MiB. These chips move every row of a tile by its own distance
# in one operation, which the kernel needs to be fast.
_VMEM_MEBIBYTES = {"v5e": 128, "v5p": 64, "v6e": 128, "tpu7x": 64}
# XLA keeps smaller scores on a chip with 128 MiB, where the kernel would move more bytes.
_SMALL_SCORES_BYTES = 8 * 2**20


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The kernel of a run and the reason for it.

    `kernel` is `None` if attention uses plain operations. Reports print `reason`.
    """

    kernel: AttentionKernel | None
    reason: str

    @classmethod
    def for_model(
        cls,
        config: ModelConfig | RecurrentConfig,
        *,
        setting: Literal["auto", "always", "never"],
        chip: str | None,
        num_rows: int,
        num_tokens: int,
        dtype: str,
        rounds_products: bool,
        is_differentiated: bool,
    ) -> Self:
        """Chooses for a program that reads segments with memory.

        `chip` is a generation of TPU, such as `v5e`, if known. A replica reads `num_rows` rows and
        `num_tokens` tokens of each at once, and attention computes in `dtype`. `rounds_products` is
        as in `AttentionKernel`. `is_differentiated` is true if the program has a backward pass.
        """
        if setting == "never":
            return cls.plain("attention_kernel is never")
        if not isinstance(config, ModelConfig) or config.position_encoding != "transformer_xl":
            return cls.plain("the kernel needs the positions of Transformer-XL")
        memory_length = config.effective_memory_length
        kernel = AttentionKernel(
            rounds_products=rounds_products, vmem_mebibytes=_VMEM_MEBIBYTES.get(chip or "", 128)
        )
        plan_class = AttentionPlan if is_differentiated else InferencePlan
        try:
            plan = plan_class(
                num_rows=num_rows,
                segment_length=num_tokens,
                memory_length=memory_length if is_differentiated else places_of(memory_length),
                num_heads=config.num_heads,
                head_dim=config.head_dim,
                dtype=dtype,
                kernel=kernel,
            )
        except ValueError:
            return cls.plain("the keys of a row do not fit in the memory on the chip")
        if setting == "auto" and plan.score_bytes < _SMALL_SCORES_BYTES:
            return cls.plain("the scores are small and stay on the chip without the kernel")
        if chip not in _VMEM_MEBIBYTES:
            return cls.plain(f"there is no kernel for {chip or 'an unknown chip'}")
        if not _has_jax():
            return cls.plain(f"JAX {_JAX_VERSION} of the extra tpu-kernel is not installed")
        return cls(kernel, "kernel, no scores in memory")

    @classmethod
    def plain(cls, why: str) -> Self:
        """Returns the choice of plain operations, with its reason."""
        return cls(None, f"plain operations: {why}")


def _has_jax() -> bool:
    # On JAX the kernel is a part of the program, which no other version has to read.
    if is_on_jax():
        return True
    try:
        return importlib.metadata.version("jax") == _JAX_VERSION
    except importlib.metadata.PackageNotFoundError:
        return False
