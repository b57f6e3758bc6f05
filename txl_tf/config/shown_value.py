"""A value as text for an error message, however large it is."""

import reprlib
from typing import Any

_LARGEST_BITS = 256


def shown_value(value: Any) -> str:
    """A short text that tells a value.

    Args:
        value: any value that a configuration may be given.

    Returns:
        Its representation, cut where it is long or deep.
    """
    return _REPR.repr(value)


class _Repr(reprlib.Repr):
    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to write out a number of some thousand digits.
        if value.bit_length() > _LARGEST_BITS:
            return f"<an integer of {value.bit_length()} bits>"
        return repr(value)


_REPR = _Repr()
_REPR.maxlevel = 3
_REPR.maxstring = _REPR.maxother = 100
_REPR.maxtuple = _REPR.maxlist = _REPR.maxdict = 8
