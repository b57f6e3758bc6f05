"""Model card of an export as pages: tables of all values, and a page that model hubs read."""

import json
import math
from typing import Any

_FIGURES = ("bits_per_byte", "bits_per_character", "nats_per_token", "perplexity")
_USE = """import tensorflow as tf
import tensorflow_text  # operations of some tokenizers
model = tf.saved_model.load("FOLDER")  # the folder above this page
print(model.signatures["serving_default"](tf.constant({example})))
"""


def hub_page(card: dict[str, Any]) -> str:
    """Writes a model card as Markdown with YAML front matter, as model hubs read it.

    The page shows the entries `license`, `data`, `quality` by split and `serving`.
    """
    corpus = _dict_in(card, "data").get("corpus")
    name = str(card.get("name") or f"Transformer-XL of {corpus or 'unknown data'}")
    results = [(corpus, split, figures) for split, figures in _dict_in(card, "quality").items()]
    weights = _dict_in(_dict_in(card, "serving"), "weights")
    sample = _dict_in(card, "sample")
    if "sample_nats_per_token" in weights:
        nats = weights["sample_nats_per_token"]
        split = f"{sample.get('split')}, the first {weights['sample_tokens']} tokens"
        results.append((sample.get("corpus"), split, {"nats_per_token": nats}))
    measured = [
        (str(data or "unknown"), str(split), figures)
        for data, split, given in results
        if (figures := _figures_in(given))
    ]
    lines = [
        "---",
        f"license: {yaml_string(str(card.get('license') or 'unknown'))}",
        "library_name: txl-tf",
        "pipeline_tag: text-generation",
        "tags: [transformer-xl, tensorflow, saved-model, text-generation]",
        *([f"datasets: [{yaml_string(str(corpus))}]"] if corpus else []),
        "model-index:",
        f"- name: {yaml_string(name)}",
        *_index(measured),
        "---",
        "",
        f"# {_plain(name)}",
        "",
        f"Exported by {card.get('software') or 'txl-tf'}; all settings are in `model_card.md`.",
    ]
    return "\n".join([*lines, *_use(card), *_measured(measured)]) + "\n"


def yaml_string(text: str) -> str:
    """Returns a text as a quoted YAML scalar in ASCII."""
    parts = []
    for character in text:
        code = ord(character)
        if 0xD800 <= code < 0xE000:
            parts.append("\\ufffd")  # an unpaired surrogate
        elif code > 0xFFFF:
            parts.append(f"\\U{code:08x}")
        elif code == 0x7F:
            parts.append("\\x7f")
        else:
            parts.append(json.dumps(character)[1:-1])
    return f'"{"".join(parts)}"'


def _index(measured: list[tuple[str, str, dict[str, float]]]) -> list[str]:
    if not measured:
        return ["  results: []"]
    lines = ["  results:"]
    for corpus, split, figures in measured:
        lines += [
            "  - task: {type: text-generation, name: Language modeling}",
            "    dataset:",
            f"      type: {yaml_string(corpus)}",
            f"      name: {yaml_string(corpus)}",
            f"      split: {yaml_string(split)}",
            "    metrics:",
        ]
        for name, value in figures.items():
            lines.append(f"    - {{type: {name}, name: {name}, value: {value:.6f}}}")
    return lines


def _use(card: dict[str, Any]) -> list[str]:
    completion = _dict_in(_dict_in(card, "serving"), "completion")
    if "example" not in completion:
        return []
    return [
        "",
        "## Use",
        "",
        "```python",
        *_USE.format(example=completion["example"]).splitlines(),
        "```",
    ]


def _measured(measured: list[tuple[str, str, dict[str, float]]]) -> list[str]:
    if not measured:
        return []
    lines = ["", "## Results", "", "| data | split | figure | value |", "|---|---|---|---|"]
    for corpus, split, figures in measured:
        where = f"| {_cell(_plain(corpus))} | {_cell(_plain(split))} |"
        lines += [f"{where} {name} | {value:.4f} |" for name, value in figures.items()]
    return lines


def _figures_in(given: Any) -> dict[str, float]:
    """Returns the finite figures of an evaluation, in the order of `_FIGURES`."""
    found = {name: given.get(name) for name in _FIGURES} if isinstance(given, dict) else {}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _dict_in(card: dict[str, Any], name: str) -> dict[str, Any]:
    found = card.get(name)
    return found if isinstance(found, dict) else {}


def _plain(text: str) -> str:
    """Returns a text on one line, without unprintable characters."""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def card_page(card: dict[str, Any]) -> str:
    """Writes a model card as Markdown; each dict in it becomes a table."""
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
