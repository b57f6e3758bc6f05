"""Choice of the attention kernel by the chip that a program is for."""

import dataclasses
from typing import Self

# Chips whose rows of a tile can move by distances of their own at once.
_WITH_STRIDED_ROLLS = ("v5e", "v5p", "v6e")


@dataclasses.dataclass(frozen=True)
class AttentionKernel:
    """How the attention kernel is made for a chip.

    Attributes:
        platform: str. `tpu`, or `cpu` to run the kernel as plain operations.
        has_strided_rolls: bool. Whether rows of a tile can move by distances of their own at once.
        rounds_products: bool. Whether products of float32 numbers may round them first.
        max_block_queries: optional int. Largest tile of queries; `None` takes what is fast.
        max_block_keys: optional int. Largest tile of keys; `None` takes what is fast.
    """

    platform: str = "tpu"
    has_strided_rolls: bool = True
    rounds_products: bool = False
    max_block_queries: int | None = None
    max_block_keys: int | None = None

    @classmethod
    def for_chip(cls, chip: str | None, rounds_products: bool = False) -> Self | None:
        """Returns the kernel for a chip, `None` where plain operations are left in place.

        Args:
            chip: optional str. Generation of TPU, such as `v5e`; `None` for other devices and
                TPUs that do not say what they are.
            rounds_products: bool. Whether products of float32 numbers may round them first.
        """
        if chip not in _WITH_STRIDED_ROLLS:
            return None
        return cls(rounds_products=rounds_products)
