"""Gives memory that is free within the process back to the system."""

import contextlib
import ctypes


def return_free_memory() -> None:
    """Makes the process as small as what it holds, where the C library can.

    glibc keeps what was freed, thread by thread; after one large request that is
    hundreds of megabytes that no other request may ever use.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
