"""What the TPU compiler says about a program."""

import dataclasses
from typing import Any, Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """A program of one replica that fits its chip, or what it would need.

    Memory figures are in bytes of one device; in a program that does not fit,
    all but `needed_bytes` and `limit_bytes` are 0.
    """

    fits: bool
    """Whether the compiler found a place for everything."""
    needed_bytes: int
    """Memory that the program needs: all of the below together."""
    limit_bytes: int
    """Memory that the compiler may use; the chip's, less what the system keeps."""
    argument_bytes: int = 0
    """Weights, optimizer state, memory of the rows and the batch."""
    output_bytes: int = 0
    """Results that do not take the place of an argument."""
    temporary_bytes: int = 0
    """Activations and whatever else lives during the step only."""
    code_bytes: int = 0
    """The program itself."""
    flops: float = 0.0
    """Floating-point operations; loops count as often as they are known to run."""
    bytes_accessed: float = 0.0
    """Bytes that operations read and write, those on the chip itself included."""
    hbm_bytes: int = 0
    """Bytes read from and written to the chip's high-bandwidth memory, with padding."""
    all_reduce_bytes: int = 0
    """Bytes that each replica gives to all-reduces."""
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    """See `CompiledText.to_dict`."""

    @classmethod
    def from_result(cls, result: dict[str, Any], hbm_bytes_per_replica: int) -> Self:
        """Reads what the compiler's process has written.

        Args:
            result: dict from `compile_file`.
            hbm_bytes_per_replica: int. Memory of the device.

        Returns:
            The `CompiledProgram`.
        """
        if result["status"] == "out_of_memory":
            return cls(
                fits=False,
                needed_bytes=result.get("needed_bytes", 0),
                limit_bytes=result.get("limit_bytes", hbm_bytes_per_replica),
                details={"message": result["message"]},
            )
        output_bytes = result["output_bytes"] - result["shared_bytes"]
        parts = (
            result["argument_bytes"],
            output_bytes,
            result["temporary_bytes"],
            result["code_bytes"],
        )
        counted = ("flops", "bytes_accessed", "hbm_bytes", "all_reduce_bytes")
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(
            fits=True,
            needed_bytes=sum(parts),
            limit_bytes=hbm_bytes_per_replica,
            argument_bytes=result["argument_bytes"],
            output_bytes=output_bytes,
            temporary_bytes=result["temporary_bytes"],
            code_bytes=result["code_bytes"],
            flops=result["flops"] * (1.0 + result["repeated_share"]),
            bytes_accessed=result["bytes_accessed"] + result["repeated_bytes"],
            hbm_bytes=result["hbm_bytes"],
            all_reduce_bytes=result["all_reduce_bytes"],
            details={
                name: value
                for name, value in result.items()
                if name not in {*known, *counted, "status", "shared_bytes"}
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """All figures by name."""
        return dataclasses.asdict(self)
