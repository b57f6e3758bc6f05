"""The least time that a step can take on a chip, by its published peaks."""

import dataclasses
from typing import Self

from txl_tf.tpu_compiler.compiled_program import CompiledProgram
from txl_tf.tpu_compiler.topology import Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds per step that each resource needs at its peak.

    No step is faster than the slowest of them, and a real one is slower than
    that: vector and scalar work, and waiting, are not counted.
    """

    flop_seconds: float
    """Floating-point operations at the peak of the matrix units in bfloat16."""
    hbm_seconds: float
    """Traffic with the high-bandwidth memory at its bandwidth."""
    all_reduce_seconds: float
    """All-reduces at the bandwidth of all links; may overlap with the rest."""

    @classmethod
    def of(cls, program: CompiledProgram, topology: Topology) -> Self:
        """Computes the times of a program that fits.

        Args:
            program: `CompiledProgram` of one replica.
            topology: `Topology`.

        Returns:
            A `Roofline`.
        """
        chip, num_chips = topology.chip, topology.num_chips
        # In a ring, all but one of n parts of the sum pass a chip's links twice.
        # Replicas of one chip add up among themselves first.
        passed = 2 * (num_chips - 1) / num_chips * program.all_reduce_bytes
        return cls(
            flop_seconds=program.flops * chip.num_replicas / chip.flops_per_second,
            hbm_seconds=program.hbm_bytes * chip.num_replicas / chip.hbm_bytes_per_second,
            all_reduce_seconds=passed / chip.interconnect_bytes_per_second,
        )

    @property
    def step_seconds(self) -> float:
        """The slowest resource but the network."""
        return max(self.flop_seconds, self.hbm_seconds)

    @property
    def bound_by(self) -> str:
        """`arithmetic` or `memory bandwidth`."""
        return "arithmetic" if self.flop_seconds >= self.hbm_seconds else "memory bandwidth"

    def to_dict(self) -> dict[str, float | str]:
        """All figures by name."""
        return {
            **dataclasses.asdict(self),
            "step_seconds": self.step_seconds,
            "bound_by": self.bound_by,
        }
