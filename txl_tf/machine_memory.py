"""Memory that the process can still allocate."""

import contextlib
import resource
from pathlib import Path

from txl_tf.errors import UsageError

_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/statm")
# Limit and usage of a control group, version 2 and version 1.
_CONTROL_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def available_bytes() -> int | None:
    """Returns the memory that can be allocated without swapping or breaking a limit.

    It is the least of `MemAvailable` and the rests of control group and address space; `None` if
    all are unknown.
    """
    limits = [_of_machine(), *map(_of_control_group, _CONTROL_GROUPS), _of_address_space()]
    known = [limit for limit in limits if limit is not None]
    return max(0, min(known)) if known else None


def require_memory(num_bytes: int, *, what: str, where: str, remedy: str) -> None:
    """Raises UsageError if this machine has fewer than `num_bytes` available.

    `what` names their use, such as `"The weights"`.
    """
    available = available_bytes()
    if available is not None and num_bytes > available:
        raise UsageError(
            f"{what} would take {describe_bytes(num_bytes)}; "
            f"{describe_bytes(available)} are available.",
            where=where,
            remedy=remedy,
        )


def describe_bytes(num_bytes: int) -> str:
    """Formats a number of bytes, such as `1.5 GiB`."""
    if num_bytes < 1 << 20:
        return f"{num_bytes:,} bytes"
    if num_bytes < 1 << 30:
        return f"{num_bytes / (1 << 20):.1f} MiB"
    # Integer division first, because a huge number overflows a float.
    gibibytes = (num_bytes >> 20) / 1024 if num_bytes < 1 << 80 else num_bytes >> 30
    return f"{gibibytes:,.1f} GiB" if isinstance(gibibytes, float) else "over 2**50 GiB"


def _of_machine() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None


def _of_control_group(paths: tuple[Path, Path]) -> int | None:
    # `max` fails to parse: there is no limit.
    with contextlib.suppress(OSError, ValueError):
        return int(paths[0].read_text()) - int(paths[1].read_text())
    return None


def _of_address_space() -> int | None:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    with contextlib.suppress(OSError, ValueError, IndexError):
        return limit - int(_STATUS.read_text().split()[0]) * resource.getpagesize()
    return None
