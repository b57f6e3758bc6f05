"""Accelerator types: slices of TPU chips under the names of Cloud TPU, Compute Engine and GKE."""

import re
from typing import NamedTuple, Self

from txl_tf.errors import UsageError
from txl_tf.tpu_compiler.chips import CHIPS, CloudNames, Topology

_GENERATIONS = {chip.cloud.generation: chip.cloud for chip in CHIPS.values()}
_NAME = re.compile(rf"({'|'.join(_GENERATIONS)})-([1-9][0-9]{{0,4}})")
_CHIPS_PER_HOST = 4
EXAMPLES = ("v2-8", "v3-32", "v4-32", "v5litepod-16", "v5p-32", "v6e-8")
"""An accelerator type of every generation."""
# Machine types of GKE; a v3 slice of several hosts has `ct3p-hightpu-4t`.
_MACHINES = {"v3": "ct3-hightpu", "v4": "ct4p-hightpu", "v5litepod": "ct5lp-hightpu"}
_MACHINES |= {"v5p": "ct5p-hightpu", "v6e": "ct6e-standard"}
COMPUTE_ENGINE = ("v5p", "v6e")
"""Generations of which Compute Engine's documents name machine types."""


class Accelerator(NamedTuple):
    """A slice of a generation of chips."""

    cloud: CloudNames
    num_chips: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """Reads an accelerator type or a topology; raises UsageError for an unknown one.

        An accelerator type is `v5litepod-16`, where v2, v3, v4 and v5p count cores, two to a
        chip; a topology is `v5e:2x4`.
        """
        if ":" in name:
            topology = Topology.parse(name)
            cloud, num_chips, rest = topology.chip.cloud, topology.num_chips, 0
            is_known = cloud.shapes.get(num_chips) == name.partition(":")[2]
        else:
            matched = _NAME.fullmatch(name)
            if matched is None:
                raise _unknown("This is not the name of an accelerator type.", name, EXAMPLES)
            cloud = _GENERATIONS[matched[1]]
            num_chips, rest = divmod(int(matched[2]), cloud.cores_per_chip)
            is_known = num_chips in cloud.shapes
        if rest or not is_known:
            known = [cls(cloud, size).name for size in cloud.shapes]
            raise _unknown(f"There is no such {cloud.generation} slice.", name, known)
        return cls(cloud, num_chips)

    @property
    def name(self) -> str:
        """The accelerator type, such as `v5litepod-16`."""
        return f"{self.generation}-{self.num_chips * self.cloud.cores_per_chip}"

    @property
    def generation(self) -> str:
        """The chips, such as `v5litepod`."""
        return self.cloud.generation

    @property
    def topology(self) -> str:
        """Chips along each dimension, such as `4x4`."""
        return self.cloud.shapes[self.num_chips]

    @property
    def chips_per_host(self) -> int:
        """TPU chips of one VM."""
        is_one_host = self.num_chips <= self.cloud.max_chips_per_host
        return self.num_chips if is_one_host else _CHIPS_PER_HOST

    @property
    def num_hosts(self) -> int:
        """VMs of the slice."""
        return self.num_chips // self.chips_per_host

    @property
    def gke_accelerator(self) -> str | None:
        """GKE's name for the chips."""
        of_one_host = self.cloud.gke_accelerator_of_one_host if self.num_hosts == 1 else None
        return of_one_host or self.cloud.gke_accelerator

    @property
    def machine_type(self) -> str:
        """Machine type of a host on GKE and Compute Engine; empty for v2, which has none."""
        if self.generation not in _MACHINES:
            return ""
        machine = f"{_MACHINES[self.generation]}-{self.chips_per_host}t"
        return machine.replace("ct3-", "ct3p-") if self.num_hosts > 1 else machine


def _unknown(what: str, name: str, known: list[str] | tuple[str, ...]) -> UsageError:
    remedy = f"There are, for example: {', '.join(known)}."
    return UsageError(what, where=f"--accelerator-type {name}", remedy=remedy)
