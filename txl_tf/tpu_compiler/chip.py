"""What is published of each generation of TPU chips."""

import dataclasses

_GIBIBYTE = 2**30
_TERA = 1e12
_GIGA = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One generation of TPU chips; all figures are of a whole chip."""

    name: str
    """What Cloud TPU calls it, such as `v5e`."""
    num_replicas: int
    """Replicas that one chip runs: 2 where each core is a device of its own."""
    num_dimensions: int
    """Dimensions of its network, 2 or 3."""
    flops_per_second: float
    """Peak of the matrix units in bfloat16."""
    hbm_bytes: int
    """High-bandwidth memory."""
    usable_hbm_bytes: int
    """What of it programs get; the rest is the system's."""
    hbm_bytes_per_second: float
    """Its bandwidth."""
    interconnect_bytes_per_second: float
    """What all links of a chip carry together, counted in one direction."""
    chip_config_name: str | None = None
    """The compiler's name for the way the cores are used, where it is not the default."""


def _chip(
    name: str,
    num_replicas: int,
    num_dimensions: int,
    teraflops: float,
    hbm_gibibytes: int,
    usable_hbm_gibibytes: float,
    hbm_gigabytes_per_second: float,
    interconnect_gigabits_per_second: float,
    chip_config_name: str | None = None,
) -> Chip:
    return Chip(
        name=name,
        num_replicas=num_replicas,
        num_dimensions=num_dimensions,
        flops_per_second=teraflops * _TERA,
        hbm_bytes=hbm_gibibytes * _GIBIBYTE,
        usable_hbm_bytes=int(usable_hbm_gibibytes * _GIBIBYTE),
        hbm_bytes_per_second=hbm_gigabytes_per_second * _GIGA,
        interconnect_bytes_per_second=interconnect_gigabits_per_second * _GIGA / 8,
        chip_config_name=chip_config_name,
    )


# Peaks, memory and network per chip are those of Google's pages of system architecture,
# "TPU v2" to "TPU v6e" (the network's as "inter-chip interconnect bandwidth", gigabits per
# second and chip); v2 and v3: Jouppi et al., 2020, "A domain-specific supercomputer for
# training deep neural networks", table 3, four links of 496 and 656 gigabits per second.
# The pages count the memory of v2 and v3 for the chip; each of its two cores has half. The
# two cores of a v4 and v5p chip work as one device ("megacore"). Usable is what the compiler of
# libtpu 0.0.31 names as the limit when it refuses a program ("Used 24.00G of 15.75G hbm"); of v5p
# it would use 95.74 GiB, more than is published.
_ALL = (
    #     replicas, dimensions, TFLOP/s, HBM GiB and usable, HBM GB/s, network Gbit/s
    _chip("v2", 2, 2, 45, 16, 2 * 7.48, 700, 4 * 496),
    _chip("v3", 2, 2, 123, 32, 2 * 15.48, 900, 4 * 656),
    _chip("v4", 1, 3, 275, 32, 30.75, 1228, 2400, chip_config_name="megacore"),
    _chip("v5e", 1, 2, 197, 16, 15.75, 819, 1600),
    _chip("v5p", 1, 3, 459, 95, 95, 2765, 4800),
    _chip("v6e", 1, 2, 918, 32, 31.25, 1640, 3584),
)
CHIPS: dict[str, Chip] = {chip.name: chip for chip in _ALL}
"""All generations that can be compiled for, by name."""
