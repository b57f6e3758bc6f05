"""The part of a file that has been downloaded so far."""

import fcntl
import json
import os
from typing import IO

from txl_tf.durability import flush_to_disk
from txl_tf.errors import DataDamagedError, OutputExistsError
from txl_tf.file_storage import read_file, remove_file, write_file
from txl_tf.json_text import parse_json
from txl_tf.local_files import open_for_writing


class PartialFile:
    """`NAME.partial`, and `NAME.partial.json` with the version it is a part of.

    A server names the version of a file by an entity tag or a date. Only with
    it is it safe to ask for the rest: without it, the rest might be that of
    another file.

    The part is locked while it is written. A process that was frozen, and whose
    part another one has removed or gone on with meanwhile, leaves that alone.

    Args:
        target: str. The complete file to be made.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._written: os.stat_result | None = None
        self.path = f"{target}.partial"
        self._version_path = f"{self.path}.json"

    @property
    def size_bytes(self) -> int:
        """Bytes there are."""
        try:
            return os.path.getsize(self.path)
        except FileNotFoundError:
            return 0

    def version(self, url: str) -> str | None:
        """Returns the version that the part was of, if it came from this address.

        Args:
            url: str. The address that is going to be asked.

        Returns:
            Entity tag or date, or `None` if there is none to rely on.
        """
        try:
            values = parse_json(read_file(self._version_path, max_bytes=4096))
        except (OSError, ValueError, DataDamagedError):
            return None
        if not isinstance(values, dict) or values.get("url") != url:
            return None
        version = values.get("version")
        return version if isinstance(version, str) else None

    def begin(self, url: str, version: str | None) -> None:
        """Forgets what there is, and notes which version is going to be written.

        Args:
            url: str. The address.
            version: optional str. Entity tag or date.
        """
        # In this order a kill in between never leaves a part with a wrong version.
        self.discard()
        if version is not None:
            content = json.dumps({"url": url, "version": version})
            write_file(self._version_path, content.encode())

    def open_to_append(self) -> IO[bytes]:
        """Opens the part at its end.

        Returns:
            The open file.

        Raises:
            OutputExistsError: If another process writes it.
        """
        self._check()
        descriptor = open_for_writing(self.path, appends=True)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise self._of_another() from error
        self._written = os.fstat(descriptor)
        return os.fdopen(descriptor, "ab")

    def discard(self) -> None:
        """Removes the part and its version."""
        self._check()
        for path in (self._version_path, self.path):
            remove_file(path)
        self._written = None

    def set_aside(self) -> str:
        """Moves the part to where it is in nobody's way, but can be looked at.

        Returns:
            Where it is now.
        """
        self._check()
        aside = f"{self._target}.damaged"
        os.replace(self.path, aside)
        self._written = None
        self.discard()
        return aside

    def publish(self) -> None:
        """Gives the complete file its name."""
        self._check()
        flush_to_disk(self.path)
        os.replace(self.path, self._target)
        self._written = None
        self.discard()
        flush_to_disk(os.path.dirname(self._target))

    def _check(self) -> None:
        """Makes sure that the part is the one that this process has written, if it has."""
        if self._written is None:
            return
        try:
            is_own = os.path.samestat(os.lstat(self.path), self._written)
        except FileNotFoundError:
            is_own = False
        if not is_own:
            raise self._of_another()

    def _of_another(self) -> OutputExistsError:
        return OutputExistsError(
            "Another process is downloading this file.",
            where=self._target,
            remedy="Wait for it to end, or name another folder.",
        )
