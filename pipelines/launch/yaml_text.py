"""Writes plain values as YAML."""

import json
from typing import Any


def yaml_text(value: Any, indentation: str = "") -> str:
    """Writes a value as a YAML block.

    Args:
        value: dict with str keys, list, str, bool or int; dicts and lists are
            not empty.
        indentation: str. Spaces before each line.

    Returns:
        The text; its last line has an end.
    """
    if isinstance(value, dict):
        return "".join(
            f"{indentation}{key}:{_after_key(item, indentation)}" for key, item in value.items()
        )
    if isinstance(value, list):
        return "".join(_item(item, indentation) for item in value)
    # JSON is YAML, and quotes whatever YAML would take for something else.
    return f"{indentation}{json.dumps(value)}\n"


def _after_key(value: Any, indentation: str) -> str:
    if isinstance(value, dict | list):
        return "\n" + yaml_text(value, indentation + "  ")
    if isinstance(value, str) and "\n" in value:
        return _block(value, indentation + "  ")
    return f" {json.dumps(value)}\n"


def _item(value: Any, indentation: str) -> str:
    if isinstance(value, str) and "\n" in value:
        return f"{indentation}-{_block(value, indentation + '  ')}"
    return f"{indentation}- {yaml_text(value, indentation + '  ').lstrip(' ')}"


def _block(text: str, indentation: str) -> str:
    lines = [f"{indentation}{line}\n" if line else "\n" for line in text.splitlines()]
    return f" |{'' if text.endswith(chr(10)) else '-'}\n{''.join(lines)}"
