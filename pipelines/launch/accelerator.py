"""Accelerator types: slices of TPU chips under the names of Cloud TPU, Compute Engine and GKE."""

import dataclasses
import math
import re
from typing import Self

from txl_tf.errors import UsageError
from txl_tf.tpu_compiler.chips import CHIPS, Topology

_GENERATIONS = {chip.cloud.generation: chip.cloud for chip in CHIPS.values()}
_NAME = re.compile(rf"({'|'.join(_GENERATIONS)})-([1-9][0-9]{{0,4}})")
_CHIPS_PER_HOST = 4
EXAMPLES = ("v2-8", "v3-32", "v4-32", "v5litepod-16", "v5p-32", "v6e-8")
"""An accelerator type of every generation."""
# Machine types of GKE, by generation and whether the slice has several hosts.
_MACHINES = {
    "v3": ("ct3-hightpu-{}t", "ct3p-hightpu-{}t"),
    "v4": ("ct4p-hightpu-{}t",) * 2,
    "v5litepod": ("ct5lp-hightpu-{}t",) * 2,
    "v5p": ("ct5p-hightpu-{}t",) * 2,
    "v6e": ("ct6e-standard-{}t",) * 2,
}
COMPUTE_ENGINE = ("v5p", "v6e")
"""Generations of which Compute Engine's documents name machine types."""


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """A slice of a generation of chips."""

    name: str
    """The accelerator type, such as `v5litepod-16`."""
    topology: str
    """Chips along each dimension, such as `4x4`."""
    chips_per_host: int
    """TPU chips of one VM."""
    runtime_version: str
    """Image of a VM."""
    gke_accelerator: str | None
    """GKE's name for the chips."""

    @classmethod
    def parse(cls, name: str) -> Self:
        """Reads an accelerator type or a topology; raises UsageError for an unknown one.

        Args:
            name: str. Generation and size, such as `v5litepod-16`, where v2, v3, v4 and
                v5p count cores, two to a chip; or chips and shape, such as `v5e:2x4`.
        """
        if ":" in name:
            return cls._of_topology(name)
        matched = _NAME.fullmatch(name)
        if matched is None:
            raise _unknown("This is not the name of an accelerator type.", name, EXAMPLES)
        generation = _GENERATIONS[matched[1]]
        num_chips, rest = divmod(int(matched[2]), generation.cores_per_chip)
        if rest or num_chips not in generation.shapes:
            raise _unknown(
                f"There is no {matched[1]} slice of this size.", name, _sizes(matched[1])
            )
        is_one_host = num_chips <= generation.max_chips_per_host
        gke_accelerator = generation.gke_accelerator
        if is_one_host:
            gke_accelerator = generation.gke_accelerator_of_one_host or gke_accelerator
        return cls(
            name=name,
            topology=generation.shapes[num_chips],
            chips_per_host=num_chips if is_one_host else _CHIPS_PER_HOST,
            runtime_version=generation.runtime_version,
            gke_accelerator=gke_accelerator,
        )

    @classmethod
    def _of_topology(cls, name: str) -> Self:
        topology = Topology.parse(name)
        generation = topology.chip.cloud
        size = math.prod(topology.shape)
        shape = name.partition(":")[2]
        if generation.shapes.get(size) != shape:
            what = "Cloud TPU has no accelerator type of this shape."
            raise _unknown(what, name, _sizes(generation.generation))
        return cls.parse(f"{generation.generation}-{size * generation.cores_per_chip}")

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

    @property
    def machine_type(self) -> str:
        """Machine type of a host on GKE and Compute Engine; empty for v2, which has none."""
        names = _MACHINES.get(self.generation, ("", ""))
        return names[self.num_hosts > 1].format(self.chips_per_host)


def _sizes(generation: str) -> list[str]:
    cloud = _GENERATIONS[generation]
    return [f"{generation}-{chips * cloud.cores_per_chip}" for chips in cloud.shapes]


def _unknown(what: str, name: str, known: list[str] | tuple[str, ...]) -> UsageError:
    remedy = f"There are, for example: {', '.join(known)}."
    return UsageError(what, where=f"--accelerator-type {name}", remedy=remedy)
