"""Owner of a folder lock, as the lock stores it."""

import os
import socket
import time
import uuid
from typing import Any

from txl_tf.errors import OutputExistsError
from txl_tf.storage.json_text import parse_json

LOCK_FILE = ".lock"
MAX_LOCK_BYTES = 1 << 16


def this_process() -> dict[str, Any]:
    """Describes this process as an owner, with a new token."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process_start": start_of(os.getpid()),
        "since": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "token": uuid.uuid4().hex,
    }


def start_of(pid: Any) -> str | None:
    """Returns the start time of a process, to tell processes with equal ids apart."""
    try:
        with open(f"/proc/{int(pid)}/stat") as file:
            # The name, in parentheses, may have spaces in it.
            start = file.read().rpartition(")")[2].split()[19]
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {start}"
    except (OSError, ValueError, TypeError, IndexError, OverflowError):
        return None


def owner_in(content: bytes) -> dict[str, Any]:
    """Parses the owner from the content of a lock; empty if the content is damaged."""
    try:
        values = parse_json(content)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def refused(owner: dict[str, Any], path: str) -> OutputExistsError:
    """Creates the error for a folder that another process is writing.

    Args:
        owner: dict. What the lock says.
        path: str. Path of the lock.
    """
    name = "another process"
    if "pid" in owner:
        name = f"process {owner['pid']} on {owner.get('host')}, which began {owner.get('since')}"
    return OutputExistsError(
        f"The folder is being written by {name}.",
        where=path,
        remedy="Wait for it to end, end it, or choose another folder.",
    )


def lost(what: str, path: str) -> OutputExistsError:
    """Creates the error for a folder that this process may no longer write.

    Args:
        what: str. What became of the folder or its lock, as a clause.
        path: str. Path of the folder or of the lock.
    """
    return OutputExistsError(
        f"This process writes nothing any more: {what}.",
        where=path,
        remedy="Start the same command again to go on with what is in the folder now.",
    )
