"""Owners of folder locks, and the lock of a folder in an object store."""

import contextlib
import json
import os
import re
import socket
import threading
import time
import uuid
from typing import Any

from txl_tf.errors import DataDamagedError, OutputExistsError
from txl_tf.storage.files import make_folder, read_file, remove_file, write_file
from txl_tf.storage.untrusted_files import parse_json

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
    """Returns the start time of a process, which tells processes with equal ids apart."""
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
    """Creates the error for a folder that another process is writing; `path` is of the lock."""
    name = "another process"
    if "pid" in owner:
        name = f"process {owner['pid']} on {owner.get('host')}, which began {owner.get('since')}"
    return OutputExistsError(
        f"The folder is being written by {name}.",
        where=path,
        remedy="Wait for it to end, end it, or choose another folder.",
    )


def lost(what: str, path: str) -> OutputExistsError:
    """Creates the error for a folder that this process may no longer write; `what` is a clause."""
    return OutputExistsError(
        f"This process writes nothing any more: {what}.",
        where=path,
        remedy="Start the same command again to resume with what is in the folder now.",
    )


_TOKEN = re.compile(r"[0-9a-f]{32}")


class StoreLock:
    """Lock object that names the owner, with a heartbeat object beside it.

    The lock object is written once, on entering. Each owner writes heartbeats into its own object,
    so that a process that wakes up after a freeze cannot overwrite the lock of its successor.
    """

    def __init__(
        self,
        folder: str,
        heartbeat_seconds: float,
        stale_seconds: float,
        settle_seconds: float,
    ) -> None:
        self._folder = folder
        self._path = os.path.join(folder, LOCK_FILE)
        self._heartbeat_seconds = heartbeat_seconds
        self._stale_seconds = stale_seconds
        self._settle_seconds = settle_seconds
        self._owner = this_process()
        self._loss: OutputExistsError | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def token(self) -> str:
        """Unique token of this owner."""
        return self._owner["token"]

    def acquire(self) -> None:
        """Takes the lock; raises OutputExistsError if another process has it."""
        make_folder(self._folder)
        there = self._there()
        if there and not self._is_gone(there):
            raise refused(there, self._path)
        self._owner = this_process()
        self._loss = None
        self._end.clear()
        self._beat()
        content = {**self._owner, "heartbeat": time.time()}
        write_file(self._path, json.dumps(content).encode())
        time.sleep(self._settle_seconds)
        now = self._there()
        if now.get("token") != self.token:
            self._remove_signs_of(self._owner)
            raise refused(now, self._path)
        self._remove_signs_of(there)
        self._thread = threading.Thread(target=self._run, name="directory-lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        if self._thread is None:
            return
        self._end.set()
        self._thread.join()
        self._thread = None
        # An object that cannot be removed becomes stale.
        with contextlib.suppress(OSError):
            self._remove_signs_of(self._owner)
            if self._there().get("token") == self.token:
                remove_file(self._path)

    def check(self) -> None:
        """Raises OutputExistsError if this process has lost the lock."""
        if self._thread is None:
            raise lost("the lock of the folder was given back", self._path)
        if self._loss is None:
            self._loss = self._found_loss()
        if self._loss is not None:
            # A new error each time: the traceback of an error that is raised again keeps growing.
            loss = self._loss
            raise OutputExistsError(loss.what, where=loss.where, remedy=loss.remedy)

    def _found_loss(self) -> OutputExistsError | None:
        there = self._there()
        if there.get("token") == self.token:
            return None
        if there:
            return refused(there, self._path)
        return lost("its lock was removed or damaged", self._path)

    def _run(self) -> None:
        while not self._end.wait(self._heartbeat_seconds):
            # After a long silence the lock may have another owner, and this process must not write.
            # A store that does not answer now may answer next time.
            with contextlib.suppress(OSError):
                self._loss = self._loss or self._found_loss()
                if self._loss is not None:
                    return
                self._beat()

    def _beat(self) -> None:
        content = {"heartbeat": time.time()}
        write_file(self._signs_of(self.token), json.dumps(content).encode())

    def _there(self) -> dict[str, Any]:
        return _content(self._path)

    def _signs_of(self, token: str) -> str:
        return f"{self._path}.{token}"

    def _remove_signs_of(self, owner: dict[str, Any]) -> None:
        token = owner.get("token")
        if isinstance(token, str) and _TOKEN.fullmatch(token):
            remove_file(self._signs_of(token))

    def _is_gone(self, there: dict[str, Any]) -> bool:
        heartbeats = [there.get("heartbeat")]
        token = there.get("token")
        if isinstance(token, str) and _TOKEN.fullmatch(token):
            heartbeats.append(_content(self._signs_of(token)).get("heartbeat"))
        times = [each for each in heartbeats if isinstance(each, int | float)]
        if not times:
            return True  # no living owner leaves it like that
        if time.time() - max(times) > self._stale_seconds:
            return True
        if there.get("host") != socket.gethostname():
            return False
        return start_of(there.get("pid")) != there.get("process_start")


def _content(path: str) -> dict[str, Any]:
    try:
        return owner_in(read_file(path))
    except (FileNotFoundError, DataDamagedError):
        return {}
