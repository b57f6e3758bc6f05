"""Addresses of TPU hosts, checked and reached within a time limit."""

import socket
import time
from collections.abc import Sequence

from txl_tf.errors import UsageError

ANSWER_SECONDS = 60.0
"""Time limit for an answer of a TPU at its address."""

_SCHEME = "grpc://"
# TCP repeats an attempt at ever longer intervals, so a host that starts later needs a new attempt.
_ATTEMPT_SECONDS = 5.0
_PAUSE_SECONDS = 0.5


def tpu_addresses(tpu: str) -> list[str]:
    """Returns the `host:port` of `grpc://` addresses; empty for `local` and names.

    Raises UsageError for an address that is not valid.
    """
    where = f"--tpu {tpu}"
    if not tpu.strip():
        raise UsageError(
            "The name of the TPU is empty.", where=where, remedy="Give a name, or leave --tpu out."
        )
    if "://" not in tpu:
        return []
    addresses = []
    for address in tpu.split(","):
        host_and_port = address.removeprefix(_SCHEME)
        if not address.startswith(_SCHEME) or not is_address(host_and_port):
            raise UsageError(
                "The address of the TPU is not valid.",
                where=where,
                remedy="Give grpc://HOST:PORT; for several hosts, separate addresses by commas.",
            )
        addresses.append(host_and_port)
    return addresses


def is_address(text: str) -> bool:
    """True if a text is `host:port`."""
    host, colon, port = text.rpartition(":")
    has_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    return bool(host and colon) and has_port and "/" not in host


def unreachable(addresses: Sequence[str], seconds: float) -> dict[str, str]:
    """Tries to connect to each `host:port` within one time limit; returns the failures."""
    end = time.monotonic() + seconds
    failures = dict.fromkeys(addresses, "not tried")
    while True:
        for address in list(failures):
            reason = _failure(address, min(max(0.1, end - time.monotonic()), _ATTEMPT_SECONDS))
            if reason is None:
                del failures[address]
            else:
                failures[address] = reason
        if not failures or time.monotonic() + _PAUSE_SECONDS >= end:
            return failures
        time.sleep(_PAUSE_SECONDS)


def described(failures: dict[str, str]) -> str:
    """Describes the failed addresses in one line."""
    return ", ".join(f"{address} ({reason})" for address, reason in failures.items())[:400]


def _failure(address: str, seconds: float) -> str | None:
    host, _, port = address.rpartition(":")
    # An IPv6 address is in brackets before its port.
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds):
            return None
    except TimeoutError:
        return "no answer"
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
