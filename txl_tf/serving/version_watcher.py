"""Loads the highest version of an export, and the next one when it appears."""

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from txl_tf.file_storage import first_line, is_remote, list_folder
from txl_tf.serving.loaded_version import LoadedVersion
from txl_tf.serving.request_error import RequestError
from txl_tf.serving.status_code import StatusCode

_LOGGER = logging.getLogger(__name__)
_NUMBER = re.compile(r"[1-9][0-9]*|0")
_HIGHEST = 2**63 - 1
_LONGEST_WAIT_SECONDS = 600.0


class _Refusal(NamedTuple):
    why: str
    state: object
    wait_seconds: float
    next_time: float


class VersionWatcher:
    """Holds one version at a time: the old one, or the new one, complete.

    A request keeps the version it began with. A version that is not as its
    checksums say, or cannot be loaded for whatever reason, is refused, and the one
    before it answers. It is tried again when its files change; otherwise ever
    more seldom, because each time all of it is read.

    Args:
        folder: str. The folder of all versions, which are named by numbers.
        verify: function of the path of a version that raises an error if it is
            not complete or not what was written.
        poll_seconds: float. Time between two looks at the folder.
    """

    def __init__(
        self, folder: str, verify: Callable[[str], object], *, poll_seconds: float
    ) -> None:
        self._folder = folder
        self._verify = verify
        self._poll_seconds = poll_seconds
        self._loaded: LoadedVersion | None = None
        self._refusals: dict[int, _Refusal] = {}
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def current(self, version: int | None = None) -> LoadedVersion:
        """The version that answers requests from now on.

        Args:
            version: optional int. The version that a request insists on.

        Returns:
            `LoadedVersion`.

        Raises:
            RequestError: UNAVAILABLE if there is none yet, NOT_FOUND if it is
                another than the request insists on.
        """
        loaded = self._loaded
        if loaded is None:
            raise RequestError(StatusCode.UNAVAILABLE, "No version is loaded yet.")
        if version not in (None, loaded.number):
            message = f"Version {version} is not served; version {loaded.number} is."
            raise RequestError(StatusCode.NOT_FOUND, message)
        return loaded

    @property
    def has_version(self) -> bool:
        """Whether a version is loaded."""
        return self._loaded is not None

    @property
    def refused(self) -> dict[int, str]:
        """Why versions were not loaded, by number, the highest first."""
        return {number: refusal.why for number, refusal in sorted(self._refusals.items())[::-1]}

    def look(self) -> None:
        """Loads the highest version that is as it was written, if that is another.

        Raises:
            OSError: If the folder cannot be read.
        """
        names = filter(_NUMBER.fullmatch, list_folder(self._folder))
        numbers = sorted((number for number in map(int, names) if number <= _HIGHEST), reverse=True)
        self._refusals = {
            number: refusal for number, refusal in self._refusals.items() if number in numbers
        }
        for number in numbers:
            if self._loaded is not None and number == self._loaded.number:
                return
            if self._is_stopped.is_set():
                return
            if self._try(number):
                return

    def start(self) -> None:
        """Looks once, and from now on again and again.

        Raises:
            OSError: If the folder cannot be read.
        """
        self._is_stopped.clear()
        self.look()
        self._thread = threading.Thread(target=self._watch, name="versions", daemon=True)
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> bool:
        """Looks no more. What is loaded goes on answering.

        Args:
            timeout_seconds: float. The most time to wait for a version that is
                being verified or loaded.

        Returns:
            Whether nothing is being verified or loaded any more.
        """
        self._is_stopped.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _watch(self) -> None:
        while not self._is_stopped.wait(self._poll_seconds):
            try:
                self.look()
            except Exception as error:
                # The folder may be there again the next time.
                _LOGGER.warning("The versions cannot be read: %s", first_line(error))

    def _try(self, number: int) -> bool:
        """Whether a version could be loaded; a refused one only if it is time."""
        path = os.path.join(self._folder, str(number))
        state = _state_of(path)
        refusal = self._refusals.get(number)
        if refusal and refusal.state == state and time.monotonic() < refusal.next_time:
            return False
        try:
            self._verify(path)
            self._loaded = LoadedVersion(path, number)
        except Exception as error:  # whatever a version does, the one before it answers on
            self._refuse(number, first_line(error) or type(error).__name__, state)
            return False
        self._refusals.pop(number, None)
        _LOGGER.info("Version %d is loaded.", number)
        return True

    def _refuse(self, number: int, why: str, state: object) -> None:
        before = self._refusals.get(number)
        if before is None or before.why != why:
            _LOGGER.warning("Version %d is not loaded: %s", number, why)
        wait_seconds = self._poll_seconds
        if before is not None and before.state == state:
            wait_seconds = min(2 * before.wait_seconds, _LONGEST_WAIT_SECONDS)
        next_time = time.monotonic() + wait_seconds
        self._refusals[number] = _Refusal(why, state, wait_seconds, next_time)


def _state_of(folder: str) -> object:
    """Something that changes when files of a local folder do."""
    if is_remote(folder):
        return None
    found = []
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            try:
                status = os.lstat(os.path.join(path, name))
            except OSError:
                continue
            found.append((path, name, status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(found)
