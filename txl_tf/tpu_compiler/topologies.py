"""Slices of TPU chips, with their names in Cloud TPU and GKE."""

import dataclasses
import math
import re
from typing import Self

from txl_tf.errors import UsageError
from txl_tf.tpu_compiler.chips import CHIPS, Chip


@dataclasses.dataclass(frozen=True)
class CloudNames:
    """Names of Cloud TPU and GKE for slices of one generation of chips."""

    generation: str
    """The accelerator type without its size, such as `v5litepod`."""
    cores_per_chip: int
    """Units per chip in the size of an accelerator type."""
    shapes: tuple[str, ...]
    """Topologies that Cloud TPU has; each has a different number of chips."""
    runtime_version: str
    """The provider's image for software that brings its own framework, like TensorFlow here."""
    gke_accelerator: str | None
    """Name of the chips in GKE; `None` if GKE does not have them."""
    max_chips_per_host: int = 4
    """Chips of the largest slice with one host; in larger slices a host has 4."""


_OF_V2 = ("2x2", "4x4", "8x8", "8x16", "16x16")
_OF_V3 = ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32")
_SMALL = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = (
    "2x2x1",
    "2x2x2",
    "2x2x4",
    "2x4x4",
    "4x4x4",
    "4x4x8",
    "4x8x8",
    "8x8x8",
    "8x8x16",
    "8x16x16",
)
_UBUNTU = "tpu-ubuntu2204-base"
_CLOUD_NAMES = {
    "v2": CloudNames("v2", 2, _OF_V2, _UBUNTU, None),
    "v3": CloudNames("v3", 2, _OF_V3, _UBUNTU, "tpu-v3-device"),
    "v4": CloudNames("v4", 2, _CUBES, _UBUNTU, "tpu-v4-podslice"),
    "v5e": CloudNames(
        "v5litepod", 1, _SMALL, "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice", max_chips_per_host=8
    ),
    "v5p": CloudNames("v5p", 2, _CUBES, "v2-alpha-tpuv5", "tpu-v5p-slice"),
    "v6e": CloudNames("v6e", 1, _SMALL, "v2-alpha-tpuv6e", "tpu-v6e-slice", max_chips_per_host=8),
    "tpu7x": CloudNames("tpu7x", 2, _CUBES, "", "tpu7x"),
}

_NAME = re.compile(r"(v\d+[a-z]?|tpu7x):(\d{1,5}(?:x\d{1,5}){0,9})", re.ASCII)
_CHIPS_PER_HOST = 4
_MAX_CHIPS = 8960


def _num_chips(shape: str) -> int:
    return math.prod(map(int, shape.split("x")))


# Cloud TPU's name of a slice counts cores or chips.
_NAMES_BY_TYPE = {
    f"{cloud.generation}-{_num_chips(shape) * cloud.cores_per_chip}": f"{chip}:{shape}"
    for chip, cloud in _CLOUD_NAMES.items()
    for shape in cloud.shapes
}
_TYPES_BY_NAME = {name: accelerator_type for accelerator_type, name in _NAMES_BY_TYPE.items()}


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice, such as `v5e:4x4` or `v4:2x2x4`; `shape` counts chips per network dimension."""

    chip: Chip
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, name: str, option: str = "--topology") -> Self:
        """Reads a topology, such as `v5e:4x4`, or accelerator type, such as `v5litepod-16`.

        Raises UsageError, which names the `option`, for unknown chips or an impossible shape.
        """
        match = _NAME.fullmatch(_NAMES_BY_TYPE.get(name, name))
        chip = None if match is None else CHIPS.get(match[1])
        shape = () if match is None else tuple(map(int, match[2].split("x")))
        # Every host has 2 x 2 chips, except that slices of a single chip exist.
        is_whole_hosts = all(length > 0 and length % 2 == 0 for length in shape[:2])
        if chip is None:
            problem = "The topology is not known."
        elif len(shape) != chip.num_dimensions:
            problem = f"A topology of {chip.name} chips must have {chip.num_dimensions} dimensions."
        elif not (is_whole_hosts or math.prod(shape) == 1) or 0 in shape:
            problem = "The first two lengths must be even and above 0, or all lengths 1."
        elif math.prod(shape) > _MAX_CHIPS:
            problem = f"No slice has more than {_MAX_CHIPS} chips."
        else:
            return cls(chip, shape)
        raise UsageError(
            problem,
            where=f"{option} {name}",
            remedy="Give the generation and the chips along each dimension, such as "
            f"{', '.join(EXAMPLES)}, or an accelerator type, such as v5litepod-16.",
        )

    @property
    def name(self) -> str:
        """Name of the topology, as `parse` accepts it."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def accelerator_type(self) -> str | None:
        """Name in Cloud TPU, such as `v5litepod-16`; `None` if Cloud TPU has no such slice."""
        return _TYPES_BY_NAME.get(self.name)

    @property
    def cloud(self) -> CloudNames:
        """Names of slices of these chips."""
        return _CLOUD_NAMES[self.chip.name]

    @property
    def num_chips(self) -> int:
        """Number of chips in the slice."""
        return math.prod(self.shape)

    @property
    def chips_per_host(self) -> int:
        """TPU chips of one VM."""
        has_one_host = self.num_chips <= self.cloud.max_chips_per_host
        return self.num_chips if has_one_host else _CHIPS_PER_HOST

    @property
    def num_hosts(self) -> int:
        """VMs of the slice."""
        return self.num_chips // self.chips_per_host

    @property
    def num_replicas(self) -> int:
        """Number of replicas in the slice, one per device."""
        return self.num_chips * self.chip.num_replicas

    @property
    def hbm_bytes_per_replica(self) -> int:
        """High-bandwidth memory of one device that programs can use."""
        return int(self.chip.usable_hbm_gibibytes * 2**30) // self.chip.num_replicas


EXAMPLES = ("v2:2x2", "v3:4x4", "v4:2x2x4", "v5e:4x4", "v5p:2x2x4", "v6e:4x4")
"""A topology of every generation that has TensorFlow."""
