"""Choice of the attention kernel by the model and the chip that a program is for."""

import dataclasses
import importlib.metadata
from typing import Any, Literal, Self

from txl_tf.config.model import ModelConfig, RecurrentConfig
from txl_tf.tpu_kernels.attention_plan import AttentionPlan
from txl_tf.tpu_kernels.inference_plan import InferencePlan, places_of

KernelSetting = Literal["auto", "always", "never"]

JAX_VERSION = "0.10.2"
"""Version of JAX that kernels are written with, that of the extra `tpu-kernel`."""
# Chips that move every row of a tile by a distance of its own at once.
_WITH_STRIDED_ROLLS = ("v5e", "v5p", "v6e")
# A chip that moves them in several steps; its loops then take about three times as long.
_WITH_PLAIN_ROLLS = ("v4",)
# It has 16 MiB on the chip, of which plans ask for a fifth too much.
_LARGEST_VMEM_BYTES_OF_V4 = 17 * 2**20
# Of these XLA keeps all on a chip with 128 MiB by itself, and a kernel moves more.
_SMALL_SCORES_BYTES = 8 * 2**20
_DOES_NOT_FIT = "the keys of a row do not fit on a chip"


@dataclasses.dataclass(frozen=True)
class AttentionKernel:
    """How the attention kernel is made for a chip.

    Attributes:
        platform: str. `tpu`, or `cpu` to run the kernel as plain operations.
        has_strided_rolls: bool. Whether the chip moves every row of a tile by a distance of its
            own at once.
        rounds_products: bool. Whether products of float32 numbers may round them first.
        max_block_queries: optional int. Largest tile of queries; `None` takes what is fast.
        max_block_keys: optional int. Largest tile of keys; `None` takes what is fast.
    """

    platform: str = "tpu"
    has_strided_rolls: bool = True
    rounds_products: bool = False
    max_block_queries: int | None = None
    max_block_keys: int | None = None

    @property
    def of_plans(self) -> dict[str, Any]:
        """Fields that plans have too, by name."""
        values = dataclasses.asdict(self)
        del values["platform"]
        return values


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The kernel of a run and why it is this one.

    Attributes:
        kernel: optional `AttentionKernel`; `None` where attention is made of plain operations.
        reason: str. What a report says.
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

        Args:
            config: configuration of the model.
            setting: `attention_kernel` of the training or the evaluation.
            chip: as in `for_chip`.
            num_rows: int. Rows that a replica reads side by side.
            num_tokens: int. Tokens of a row that are read at once.
            dtype: str. What attention computes with, `float32` or `bfloat16`.
            rounds_products: as in `for_chip`.
            is_differentiated: bool. Whether there is a backward pass.
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
        """Chooses for a chip.

        Args:
            chip: optional str. Generation of TPU, such as `v5e`; `None` where it is not known.
            rounds_products: bool. Whether products of float32 numbers may round them first.
            is_forced: bool. Whether it need not be faster.
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
        """Returns the choice of plain operations, and why."""
        return cls(None, f"plain operations: {why}")


def _has_jax() -> bool:
    try:
        return importlib.metadata.version("jax") == JAX_VERSION
    except importlib.metadata.PackageNotFoundError:
        return False
