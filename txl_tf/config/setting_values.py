"""Values of settings as text: parsed from a command line, and shown in error messages."""

import json
import re
import reprlib
from typing import Any

from txl_tf.storage.strict_json import parse_json

_WORDS = {"none": None, "true": True, "false": False}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def parse_setting(text: str) -> Any:
    """Parses JSON, `.5`, `(1, 2)`, or `none`, `true` and `false`; any other text is a string.

    Raises ValueError for JSON that `parse_json` refuses, such as a number of 5,000 digits.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        if _NUMBER.fullmatch(text):
            return float(text)
        if text[:1] + text[-1:] == "()":
            return parse_setting(f"[{text[1:-1].rstrip(', ')}]")
        return _WORDS.get(text.lower(), text)


_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxstring = _REPR.maxlong = _REPR.maxother = 100
_REPR.maxtuple = _REPR.maxlist = _REPR.maxdict = 8


def shown_value(value: Any) -> str:
    """Formats any value for an error message, and shortens a long or deeply nested value."""
    return _REPR.repr(value)
