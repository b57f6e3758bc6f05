"""The value of a setting that was given as text, as on a command line."""

import json
from typing import Any

from txl_tf.json_text import parse_json

_WORDS = {"None": None, "True": True, "False": False}


def parse_setting(text: str) -> Any:
    """Reads a value.

    Args:
        text: str. JSON, or what Python calls `None`, `True` and `False`; all
            else is a string.

    Returns:
        The value.

    Raises:
        ValueError: If it is JSON that cannot be meant, such as a number that no
            type can hold.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        return _WORDS.get(text, text)
