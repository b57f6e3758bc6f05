"""Names the settings in which two runs differ."""

from typing import Any

_MAX_SHOWN = 4


def differing_settings(stored: dict[str, Any], current: dict[str, Any]) -> str:
    """Lists the settings that are not the same, for an error's text.

    Args:
        stored: dict of JSON values, nested or not. What a run was begun with.
        current: dict of JSON values. What it is asked to go on with.

    Returns:
        One line such as `2 differ: seed (stored 7, now 8), model.dropout
        (stored 0.1, now 0.2)`; empty where all are the same.
    """
    theirs, mine = _flat(stored), _flat(current)
    # A setting that only one of them knows counts as None: so are those off that came later.
    names = sorted(
        name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)
    )
    if not names:
        return ""
    shown = ", ".join(
        f"{name} (stored {theirs.get(name)!r}, now {mine.get(name)!r})"
        for name in names[:_MAX_SHOWN]
    )
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return f"{len(names)} differ: {shown}{more}"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return flat
