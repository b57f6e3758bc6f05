"""The model card as a page to read."""

from typing import Any


def card_page(card: dict[str, Any]) -> str:
    """Writes a model card as Markdown.

    Args:
        card: dict of JSON values. Each dict in it becomes a table.

    Returns:
        The page.
    """
    lines = ["# Model card", ""]
    plain = {name: value for name, value in card.items() if not isinstance(value, dict)}
    lines += _table(plain) if plain else []
    for name, value in card.items():
        if isinstance(value, dict):
            lines += ["", f"## {_title(name)}", "", *_table(_flat(value))]
    return "\n".join(lines) + "\n"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}: ")
        else:
            flat[prefix + name] = value
    return flat


def _table(values: dict[str, Any]) -> list[str]:
    if not values:
        return ["nothing"]
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items()]
    return ["| | |", "|---|---|", *rows]


def _cell(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
