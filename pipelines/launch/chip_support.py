"""What is expected of each generation of chips with TensorFlow 2.20.0, and what nobody has seen."""

import dataclasses

from pipelines.launch.accelerator import Accelerator

_COMPILED = "the TPU compiler of libtpu 0.0.31 takes programs for these chips"
_NO_TPU = "nothing here has run on a TPU"
_REPORTS = "with TensorFlow 2.18 and 2.19 slices were reported to hang when connecting"


@dataclasses.dataclass(frozen=True)
class ChipSupport:
    """One line of the table.

    Args:
        expected: str. What should work, and why one may think so.
        unproven: str. What is not known.
    """

    expected: str
    unproven: str


_SLICE_SERVER = "the server of tensorflow-tpu 2.20.0 knows the shapes of these slices"
_SLICE_SERVER_ASKS = "the server of tensorflow-tpu 2.20.0 leaves the shape to libtpu"
_SUPPORT = {
    ("v2", False): ChipSupport(f"works; {_COMPILED}", _NO_TPU),
    ("v2", True): ChipSupport(f"works; {_SLICE_SERVER}", f"{_NO_TPU}; {_REPORTS}"),
    ("v3", False): ChipSupport(f"works; {_COMPILED}", _NO_TPU),
    ("v3", True): ChipSupport(f"works; {_SLICE_SERVER}", f"{_NO_TPU}; {_REPORTS}"),
    ("v4", False): ChipSupport(f"works; {_COMPILED}", _NO_TPU),
    ("v4", True): ChipSupport(f"works; {_SLICE_SERVER_ASKS}", f"{_NO_TPU}; {_REPORTS}"),
    ("v5litepod", False): ChipSupport(
        f"works; {_COMPILED}, and users had 2.16 and 2.18 running on them", _NO_TPU
    ),
    ("v5litepod", True): ChipSupport(
        f"works; {_SLICE_SERVER_ASKS}, and a user had 2.18 running on 16 chips",
        f"{_NO_TPU}; {_REPORTS}",
    ),
    ("v5p", False): ChipSupport(f"works; {_COMPILED}", _NO_TPU),
    ("v5p", True): ChipSupport(f"works; {_SLICE_SERVER_ASKS}", f"{_NO_TPU}; {_REPORTS}"),
    ("v6e", False): ChipSupport(
        f"unclear; {_COMPILED}",
        "2.16 to 2.19 were reported to fail; the provider supports no training with TensorFlow",
    ),
    ("v6e", True): ChipSupport(
        "unclear on GKE, where one site has run 2.18; not on TPU VMs, whose server in "
        "tensorflow-tpu 2.20.0 knows no v6e",
        "everything",
    ),
}


def support_of(accelerator: Accelerator) -> ChipSupport:
    """The line of the table that a slice belongs to.

    Args:
        accelerator: `Accelerator`.

    Returns:
        A `ChipSupport`.
    """
    return _SUPPORT[accelerator.generation, accelerator.num_hosts > 1]


def support_table() -> str:
    """All lines, as a Markdown table."""
    rows = ["| chips | hosts | expected | unproven |", "|---|---|---|---|"]
    for (generation, is_slice), support in _SUPPORT.items():
        hosts = "several" if is_slice else "one"
        rows.append(f"| {generation} | {hosts} | {support.expected} | {support.unproven} |")
    return "\n".join(rows)
