"""Choice of the attention kernel by model and chip."""

import dataclasses
import importlib.metadata
from typing import Any, Literal, Self

from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.tpu_kernels.attention_plan import AttentionPlan, InferencePlan, places_of

KernelSetting = Literal["auto", "always", "never"]

JAX_VERSION = "0.10.2"
"""Version of JAX that writes the kernels, as in the extra `tpu-kernel`."""
# Chips that rotate every row of a tile by its own distance at once.
_WITH_STRIDED_ROLLS = ("v5e", "v5p", "v6e")
# A chip that needs several steps for this; its loops take about three times as long.
_WITH_PLAIN_ROLLS = ("v4",)
# It has 16 MiB on the chip, and plans overestimate their need by a fifth.
_LARGEST_VMEM_BYTES_OF_V4 = 17 * 2**20
# XLA keeps scores of this size on a chip with 128 MiB, and a kernel moves more.
_SMALL_SCORES_BYTES = 8 * 2**20
_DOES_NOT_FIT = "the keys of a row do not fit on a chip"


@dataclasses.dataclass(frozen=True)
class AttentionKernel:
    """Settings of the attention kernel for a chip.

    The platform is `tpu`, or `cpu` to run the kernel as plain operations. `has_strided_rolls` is
    true if the chip rotates every row of a tile by its own distance at once, and
    `rounds_products` if products of float32 numbers may round them first. Without maxima the
    fastest tiles are used.
    """

    platform: str = "tpu"
    has_strided_rolls: bool = True
    rounds_products: bool = False
    max_block_queries: int | None = None
    max_block_keys: int | None = None

    @property
    def of_plans(self) -> dict[str, Any]:
        """Returns the fields that plans have too, by name."""
        values = dataclasses.asdict(self)
        del values["platform"]
        return values


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The kernel of a run and the reason for it.

    `kernel` is `None` if attention uses plain operations; reports print `reason`.
    """

    kernel: AttentionKernel | None
    reason: str

    @classmethod
    def for_model(
        cls,
        config: ModelConfig | RecurrentConfig,
        *,
        setting: KernelSetting,
        chip: str | None,
        num_rows: int,
        num_tokens: int,
        dtype: str,
        rounds_products: bool,
        is_differentiated: bool,
    ) -> Self:
        """Chooses for a program that reads segments with memory.

        A replica reads `num_rows` rows and `num_tokens` tokens of each at once; attention
        computes in `dtype`. `is_differentiated` is true for a backward pass; the others are as in
        `for_chip`.
        """
        if setting == "never":
            return cls.plain("attention_kernel is never")
        if not isinstance(config, ModelConfig) or config.position_encoding != "transformer_xl":
            return cls.plain("the positions are not those of Transformer-XL")
        memory_length = config.effective_memory_length
        sizes: dict[str, Any] = {
            "num_rows": num_rows,
            "segment_length": num_tokens,
            "num_heads": config.num_heads,
            "head_dim": config.head_dim,
            "dtype": dtype,
        }
        plan: AttentionPlan
        try:
            if is_differentiated:
                plan = AttentionPlan(**sizes, memory_length=memory_length)
            else:
                plan = InferencePlan(**sizes, memory_length=places_of(memory_length))
        except ValueError:
            return cls.plain(_DOES_NOT_FIT)
        if chip in _WITH_PLAIN_ROLLS and plan.vmem_bytes > _LARGEST_VMEM_BYTES_OF_V4:
            return cls.plain(_DOES_NOT_FIT)
        if setting == "auto" and plan.score_bytes < _SMALL_SCORES_BYTES:
            return cls.plain("the scores are small and stay on the chip without it")
        return cls.for_chip(chip, rounds_products=rounds_products, is_forced=setting == "always")

    @classmethod
    def for_chip(
        cls, chip: str | None, rounds_products: bool = False, is_forced: bool = False
    ) -> Self:
        """Chooses for a generation of TPU, such as `v5e`; `None` if unknown.

        `rounds_products` as in `AttentionKernel`. With `is_forced` the kernel need not be faster.
        """
        if not chip:
            return cls.plain("the chip is not known")
        has_strided_rolls = chip in _WITH_STRIDED_ROLLS
        if not has_strided_rolls and not (is_forced and chip in _WITH_PLAIN_ROLLS):
            return cls.plain(f"{chip} cannot move the rows of a tile apart at once")
        if not _has_jax():
            return cls.plain(f"JAX {JAX_VERSION} is not installed, see the extra tpu-kernel")
        kernel = AttentionKernel(
            has_strided_rolls=has_strided_rolls, rounds_products=rounds_products
        )
        return cls(kernel, "kernel, no scores in memory")

    @classmethod
    def plain(cls, why: str) -> Self:
        """Returns the choice of plain operations, with its reason."""
        return cls(None, f"plain operations: {why}")


def _has_jax() -> bool:
    try:
        return importlib.metadata.version("jax") == JAX_VERSION
    except importlib.metadata.PackageNotFoundError:
        return False
