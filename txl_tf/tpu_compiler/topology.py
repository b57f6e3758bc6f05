"""A slice of TPU chips, by the name that says how they are wired."""

import dataclasses
import math
import re
from typing import Self

from txl_tf.errors import UsageError
from txl_tf.tpu_compiler.chip import CHIPS, Chip

_NAME = re.compile(r"(v\d+[a-z]?):(\d{1,5}(?:x\d{1,5}){0,9})", re.ASCII)
_MAX_CHIPS = 8960


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice, such as `v5e:4x4` or `v4:2x2x4`.

    Attributes:
        chip: `Chip`.
        shape: tuple of int. Chips along each dimension of the network.
    """

    chip: Chip
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, name: str) -> Self:
        """Reads a name.

        Args:
            name: str. Generation and shape, such as `v5e:4x4`.

        Returns:
            The `Topology`.

        Raises:
            UsageError: If there are no such chips, or none wired like that.
        """
        matched = _NAME.fullmatch(name)
        if matched is None or matched[1] not in CHIPS:
            raise _unknown("This is not the name of a topology.", name)
        chip = CHIPS[matched[1]]
        shape = tuple(int(length) for length in matched[2].split("x"))
        if len(shape) != chip.num_dimensions:
            raise _unknown(
                f"{chip.name} chips are wired in {chip.num_dimensions} dimensions.", name
            )
        # Every host has 2 x 2 chips, except that a single chip can be had by itself.
        is_whole_hosts = all(length > 0 and length % 2 == 0 for length in shape[:2])
        if not (is_whole_hosts or math.prod(shape) == 1) or 0 in shape:
            raise _unknown("The first two lengths are even, since a host has 2 x 2 chips.", name)
        if math.prod(shape) > _MAX_CHIPS:
            raise _unknown(f"No slice has more than {_MAX_CHIPS} chips.", name)
        return cls(chip, shape)

    @property
    def name(self) -> str:
        """What `parse` reads."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def num_chips(self) -> int:
        """Chips of the slice."""
        return math.prod(self.shape)

    @property
    def num_replicas(self) -> int:
        """Replicas of the slice, one per device."""
        return self.num_chips * self.chip.num_replicas

    @property
    def hbm_bytes_per_replica(self) -> int:
        """Memory of one device that programs get."""
        return self.chip.usable_hbm_bytes // self.chip.num_replicas


EXAMPLES = ("v2:2x2", "v3:4x4", "v4:2x2x4", "v5e:4x4", "v5p:2x2x4", "v6e:4x4")
"""A topology of every generation."""


def _unknown(what: str, name: str) -> UsageError:
    return UsageError(
        what,
        where=f"--topology {name}",
        remedy=f"Generation and chips along each dimension, such as {', '.join(EXAMPLES)}.",
    )
