"""Settings by dotted name, and the differences between two sets of settings."""

from typing import Any

_MAX_SHOWN = 4


def describe_differences(stored: dict[str, Any], current: dict[str, Any]) -> str:
    """Lists the settings that differ between two nested dicts of JSON values, in one line.

    An example is `2 settings differ: model.dropout (stored 0.1, now 0.2), seed (stored 7, now 8)`.
    The line lists at most four of them by name, and is empty if all are equal. A missing setting
    counts as None.
    """
    before, now = flat_settings(stored), flat_settings(current)
    names = sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name))
    if not names:
        return ""
    listing = ", ".join(
        f"{name} (stored {before.get(name)!r}, now {now.get(name)!r})"
        for name in names[:_MAX_SHOWN]
    )
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return f"{len(names)} setting{'s differ' if len(names) > 1 else ' differs'}: {listing}{more}"


def flat_settings(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the values of nested settings by dotted name; each name begins with the prefix."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        is_section = isinstance(value, dict) and value
        flat |= flat_settings(value, f"{name}.") if is_section else {name: value}
    return flat
