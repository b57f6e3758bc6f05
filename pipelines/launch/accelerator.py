"""What Cloud TPU and GKE call a slice of TPU chips."""

import dataclasses
import math
import re
from typing import Self

from txl_tf.errors import UsageError

_NAME = re.compile(r"(v2|v3|v4|v5litepod|v5p|v6e)-([1-9][0-9]{0,4})")
# Shapes of the generations with two dimensions, by the number of chips.
_SHAPES_OF_SMALL_CHIPS = {
    1: "1x1",
    4: "2x2",
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
}
_SHAPES_OF_V2 = {4: "2x2", 16: "4x4", 64: "8x8", 128: "8x16", 256: "16x16"}
_SHAPES_OF_V3 = {4: "2x2", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
_SHAPES_OF_V3 |= {512: "16x32", 1024: "32x32"}
# The shapes that a size stands for by itself; others are asked for by their shape.
_SHAPES_OF_CUBES = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
    512: "8x8x8",
    1024: "8x8x16",
    2048: "8x16x16",
}
_MAX_CHIPS_OF_ONE_HOST = 8
_CHIPS_PER_HOST = 4


@dataclasses.dataclass(frozen=True)
class _Generation:
    cores_per_chip: int
    """What the number in the name counts, per chip."""
    shapes: dict[int, str]
    runtime_version: str
    """Image that the provider names for what brings its own framework, as TensorFlow is here."""
    gke_accelerator: str | None


_GENERATIONS = {
    "v2": _Generation(2, _SHAPES_OF_V2, "tpu-ubuntu2204-base", None),
    "v3": _Generation(2, _SHAPES_OF_V3, "tpu-ubuntu2204-base", "tpu-v3-slice"),
    "v4": _Generation(2, _SHAPES_OF_CUBES, "tpu-ubuntu2204-base", "tpu-v4-podslice"),
    "v5litepod": _Generation(
        1, _SHAPES_OF_SMALL_CHIPS, "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice"
    ),
    "v5p": _Generation(2, _SHAPES_OF_CUBES, "v2-alpha-tpuv5", "tpu-v5p-slice"),
    "v6e": _Generation(1, _SHAPES_OF_SMALL_CHIPS, "v2-alpha-tpuv6e", "tpu-v6e-slice"),
}
_SINGLE_V3_HOST = "tpu-v3-device"


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A slice of a generation of chips.

    Args:
        name: str. The accelerator type, such as `v5litepod-16`.
        topology: str. Chips along each dimension, such as `4x4`.
        chips_per_host: int. TPU chips that one VM has.
        runtime_version: str. Image of a VM.
        gke_accelerator: optional str. GKE's name for the chips.
    """

    name: str
    topology: str
    chips_per_host: int
    runtime_version: str
    gke_accelerator: str | None

    @classmethod
    def parse(cls, name: str) -> Self:
        """Reads an accelerator type.

        Args:
            name: str. Generation and size, such as `v5litepod-16`; of v2, v3,
                v4 and v5p the size counts cores, two to a chip.

        Returns:
            The `Accelerator`.

        Raises:
            UsageError: If there is none of this name.
        """
        matched = _NAME.fullmatch(name)
        if matched is None:
            raise _unknown("This is not the name of an accelerator type.", name, EXAMPLES)
        generation = _GENERATIONS[matched[1]]
        num_chips, rest = divmod(int(matched[2]), generation.cores_per_chip)
        if rest or num_chips not in generation.shapes:
            sizes = [
                f"{matched[1]}-{chips * generation.cores_per_chip}" for chips in generation.shapes
            ]
            raise _unknown(f"There is no {matched[1]} slice of this size.", name, sizes)
        has_large_hosts = generation.shapes is _SHAPES_OF_SMALL_CHIPS
        is_one_host = num_chips <= (_MAX_CHIPS_OF_ONE_HOST if has_large_hosts else _CHIPS_PER_HOST)
        gke_accelerator = generation.gke_accelerator
        if is_one_host and matched[1] == "v3":
            gke_accelerator = _SINGLE_V3_HOST
        return cls(
            name=name,
            topology=generation.shapes[num_chips],
            chips_per_host=num_chips if is_one_host else _CHIPS_PER_HOST,
            runtime_version=generation.runtime_version,
            gke_accelerator=gke_accelerator,
        )

    @property
    def generation(self) -> str:
        """The chips, such as `v5litepod`."""
        return self.name.partition("-")[0]

    @property
    def num_chips(self) -> int:
        """Chips of the slice."""
        return math.prod(int(length) for length in self.topology.split("x"))

    @property
    def num_hosts(self) -> int:
        """VMs of the slice."""
        return self.num_chips // self.chips_per_host


EXAMPLES = ("v2-8", "v3-32", "v4-32", "v5litepod-16", "v5p-32", "v6e-8")
"""An accelerator type of every generation."""


def _unknown(what: str, name: str, known: list[str] | tuple[str, ...]) -> UsageError:
    return UsageError(
        what,
        where=f"--accelerator-type {name}",
        remedy=f"There are, for example: {', '.join(known)}.",
    )
