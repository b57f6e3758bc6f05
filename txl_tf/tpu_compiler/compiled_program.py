"""Memory and costs of a compiled program, and the memory of the programs of a run together."""

import dataclasses
from typing import Any

from txl_tf.tpu_compiler.topologies import Topology


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """Figures of a compiled program of one replica; all figures are for one device."""

    needed_bytes: int
    """Memory that the program needs, the sum of the parts below."""
    limit_bytes: int
    """Memory that programs can use, without the memory of the system."""
    attention: str = ""
    """How the program attends."""
    argument_bytes: int = 0
    """Weights, optimizer state, memory of the rows and the batch."""
    output_bytes: int = 0
    """Results that do not reuse an argument's memory."""
    temporary_bytes: int = 0
    """Activations and other tensors that live only during the step."""
    flops: int = 0
    """Floating-point operations of products and kernels in one step."""
    hbm_bytes: int = 0
    """Bytes that a step reads from and writes to high-bandwidth memory, with padding."""
    all_reduce_bytes: int = 0
    """Bytes that each replica contributes to all-reduces in one step."""

    @property
    def fits(self) -> bool:
        """True if the program fits in the memory of the device."""
        return self.needed_bytes <= self.limit_bytes

    def roofline(self, topology: Topology) -> dict[str, float]:
        """Returns the seconds per step that each resource needs at its peak.

        A step takes at least as long as the slowest of these. It takes longer, because vector and
        scalar work and waiting are not counted. All-reduces may overlap with the rest.
        """
        chip, num_chips = topology.chip, topology.num_chips
        # In a ring of n chips, each of n parts of the sum passes n - 1 links as partial sums, and
        # n - 1 links as the result. So a chip sends 2 * (n - 1) / n of the bytes. Replicas of one
        # chip first add up among themselves.
        passed_bytes = 2 * (num_chips - 1) / num_chips * self.all_reduce_bytes
        flop_seconds = self.flops * chip.num_replicas / chip.flops_per_second
        hbm_seconds = self.hbm_bytes * chip.num_replicas / chip.hbm_bytes_per_second
        return {
            "flop_seconds": flop_seconds,
            "hbm_seconds": hbm_seconds,
            "all_reduce_seconds": passed_bytes / chip.interconnect_bytes_per_second,
            "step_seconds": max(flop_seconds, hbm_seconds),
        }


def hbm_at_once(
    training: CompiledProgram, evaluation: CompiledProgram | None, shared_bytes: int
) -> dict[str, Any]:
    """Returns the bytes that training and evaluation of a run need, the limit, and if both fit.

    The arguments of training stay in memory during an evaluation, which reads the same weights.
    `shared_bytes` is the size of those arguments of the evaluation that are variables of the
    trainer. The size of the programs themselves is not counted.
    """
    while_training, while_evaluating = training.needed_bytes, 0
    if evaluation is not None:
        while_evaluating = training.argument_bytes + max(evaluation.needed_bytes - shared_bytes, 0)
    return {
        "while_training_bytes": while_training,
        "while_evaluating_bytes": while_evaluating,
        "limit_bytes": training.limit_bytes,
        "fits": max(while_training, while_evaluating) <= training.limit_bytes,
    }
