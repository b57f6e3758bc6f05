"""Loads the highest version of an export, and the next one when it appears."""

import logging
import os
import threading
from collections.abc import Callable

import tensorflow as tf

from txl_tf.errors import JobError
from txl_tf.file_storage import first_line, list_folder
from txl_tf.serving.loaded_version import LoadedVersion
from txl_tf.serving.request_error import RequestError
from txl_tf.serving.status_code import StatusCode

_LOGGER = logging.getLogger(__name__)


class VersionWatcher:
    """Holds one version at a time: the old one, or the new one, complete.

    A request keeps the version it began with. A version that is not as its
    checksums say is not loaded, and looked at again the next time; meanwhile the
    one before it answers.

    Args:
        folder: str. The folder of all versions, which are named by numbers.
        verify: function of the path of a version that raises JobError if it is
            not complete or not what was written.
        poll_seconds: float. Time between two looks at the folder.

    Attributes:
        refused: dict of version number to why it was not loaded.
    """

    def __init__(
        self, folder: str, verify: Callable[[str], object], *, poll_seconds: float
    ) -> None:
        self._folder = folder
        self._verify = verify
        self._poll_seconds = poll_seconds
        self._loaded: LoadedVersion | None = None
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.refused: dict[int, str] = {}

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

    def look(self) -> None:
        """Loads the highest version that is as it was written, if that is another."""
        numbers = sorted(map(int, filter(str.isdecimal, list_folder(self._folder))), reverse=True)
        for number in numbers:
            if self._loaded is not None and number == self._loaded.number:
                return
            path = os.path.join(self._folder, str(number))
            try:
                self._verify(path)
                self._loaded = LoadedVersion(path, number)
            except (JobError, OSError, tf.errors.OpError, ValueError) as error:
                self._refuse(number, first_line(error))
                continue
            self.refused.pop(number, None)
            _LOGGER.info("Version %d is loaded.", number)
            return

    def start(self) -> None:
        """Looks once, and from now on again and again."""
        self.look()
        self._is_stopped.clear()
        self._thread = threading.Thread(target=self._watch, name="versions", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Looks no more. What is loaded goes on answering."""
        self._is_stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        while not self._is_stopped.wait(self._poll_seconds):
            try:
                self.look()
            except OSError as error:
                # The folder may be there again the next time.
                _LOGGER.warning("The versions cannot be read: %s", first_line(error))

    def _refuse(self, number: int, why: str) -> None:
        if self.refused.get(number) != why:
            _LOGGER.warning("Version %d is not loaded: %s", number, why)
        self.refused[number] = why
