"""TPU generations with their published peaks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """One generation of TPU chips, as published; all figures are for one chip."""

    name: str
    """Name in Cloud TPU, such as `v5e`."""
    num_replicas: int
    """Replicas on one chip: 2 if each core is a separate device."""
    num_dimensions: int
    """Dimensions of the network of chips, 2 or 3."""
    flops_per_second: float
    """Peak of the matrix units in bfloat16."""
    usable_hbm_gibibytes: float
    """High-bandwidth memory that programs can use, without the memory of the system."""
    hbm_bytes_per_second: float
    """Bandwidth of the high-bandwidth memory."""
    interconnect_bytes_per_second: float
    """Bandwidth of all links of a chip together, in one direction."""
    chip_config_name: str | None = None
    """The compiler's name for the use of cores, `None` for its default."""
    has_tensorflow: bool = True
    """True if TensorFlow runs on these chips; JAX runs on v4 and later."""


# Peaks and bandwidths are from Google's pages of system architecture, "TPU v2" to "TPU v6e". They
# give the bandwidth of the network as "inter-chip interconnect bandwidth" in gigabits per second
# and chip, which is divided by 8 here. The networks of v2 and v3 are from Jouppi et al., 2020, "A
# domain-specific supercomputer for training deep neural networks", table 3: four links of 496 and
# 656 gigabits per second. The two cores of a v4 and v5p chip work as one device ("megacore"). The
# usable memory is the limit in error messages of the compiler of libtpu 0.0.31 ("Used 24.00G of
# 15.75G hbm"). For v5p it is the published 95 GiB, although the compiler would use 95.74 GiB.
CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        #     replicas, dimensions, FLOP/s, usable HBM GiB, HBM bytes/s, network bytes/s
        Chip("v2", 2, 2, 45e12, 2 * 7.48, 700e9, 4 * 496e9 / 8),
        Chip("v3", 2, 2, 123e12, 2 * 15.48, 900e9, 4 * 656e9 / 8),
        Chip("v4", 1, 3, 275e12, 30.75, 1228e9, 2400e9 / 8, chip_config_name="megacore"),
        Chip("v5e", 1, 2, 197e12, 15.75, 819e9, 1600e9 / 8),
        Chip("v5p", 1, 3, 459e12, 95, 2765e9, 4800e9 / 8),
        Chip("v6e", 1, 2, 918e12, 31.25, 1640e9, 3584e9 / 8),
        Chip("tpu7x", 2, 3, 2307e12, 2 * 94.75, 7380e9, 9600e9 / 8, has_tensorflow=False),
    )
}
"""All generations that can be compiled for, by name."""
