"""The note of a host that was told to go, for the process that drives it.

The host's server writes it and serves on; the process that trains looks for it
through the server, saves, writes into it and ends. This module does not import TensorFlow.
"""

import contextlib
import os

from txl_tf.local_files import open_for_writing


def notice_path(port: int | str) -> str:
    """Where the server of a port notes that its host was told to go."""
    return f"/tmp/txl-host-leaves-{os.getuid()}-{port}"


def write_notice(port: int) -> None:
    """Notes that the host was told to go."""
    # Others can write into this folder, so that a link may be in its place.
    os.close(open_for_writing(notice_path(port)))


def is_released(port: int) -> bool:
    """Whether the process that trained has saved, and needs the host no more."""
    with contextlib.suppress(OSError):
        return os.stat(notice_path(port)).st_size > 0
    return False


def remove_notice(port: int) -> None:
    """Removes the note of an earlier server of this port."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(notice_path(port))
