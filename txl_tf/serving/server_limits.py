"""What the server bears at once; beyond that, a client waits or is told."""

import dataclasses
import os


def _default_num_running() -> int:
    return max(4, 2 * (os.cpu_count() or 1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits of a server that no client can move.

    A request waits where `num_running` others run. One more than `max_waiting`
    is answered 503, or RESOURCE_EXHAUSTED over gRPC, and so is one that waited
    `wait_seconds`.
    """

    max_body_bytes: int = 256 << 20
    """The longest body of a request, and the longest message over gRPC."""
    max_bodies_bytes: int = 512 << 20
    """All bodies of REST that are being read or answered. Small ones do not count."""
    small_body_bytes: int = 64 << 10
    """Up to here a body is small."""
    max_json_values: int = 8_000_000
    """The most numbers, strings, lists and objects in one body."""
    max_json_containers: int = 500_000
    """The most lists and objects of them."""
    body_seconds: float = 30.0
    """The time in which a request must have arrived."""
    idle_seconds: float = 60.0
    """How long a connection may ask for nothing."""
    answer_seconds: float = 30.0
    """The time in which a client must have taken its answer."""
    max_connections: int = 512
    """Connections over REST. The next ones are answered 503 at once."""
    max_grpc_requests: int = 512
    """Requests over gRPC that are being read, waiting or running."""
    num_running: int = dataclasses.field(default_factory=_default_num_running)
    """Requests that are computed at a time."""
    max_waiting: int = 1000
    """Requests that wait to be computed."""
    wait_seconds: float = 60.0
    """How long a request may wait to be computed."""
    memory_fraction: float = 0.5
    """The part of the memory, free at the start, that all requests together may take."""
