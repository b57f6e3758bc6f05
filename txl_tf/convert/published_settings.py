"""What the published models were evaluated with, and no weight tells.

Recognised by depth, width and the first cutoff.
"""

from typing import Any

DEFAULT_SEGMENT_LENGTH = 128

_LARGE_CHARACTERS = {
    "segment_length": 128,
    "memory_length": 3800,
    "clamp_length": 1000,
    "same_length": True,
    "dropout": 0.15,
    "attention_dropout": 0.15,
}
_BASE_CHARACTERS = {
    "segment_length": 80,
    "memory_length": 2100,
    "clamp_length": 820,
    "same_length": True,
    "dropout": 0.1,
}
_LARGE_WIKITEXT = {
    "segment_length": 128,
    "memory_length": 1600,
    "clamp_length": 1000,
    "same_length": True,
    "dropout": 0.2,
    "attention_dropout": 0.2,
}
_BASE_WIKITEXT = {
    "segment_length": 64,
    "memory_length": 640,
    "clamp_length": 400,
    "same_length": True,
    "dropout": 0.1,
}
_SENTENCES = {"segment_length": 32, "memory_length": 128, "same_length": True}

_SETTINGS: dict[tuple[int, int, int | None], dict[str, Any]] = {
    (24, 1024, None): _LARGE_CHARACTERS,
    (12, 512, None): _BASE_CHARACTERS,
    (18, 1024, 20000): _LARGE_WIKITEXT,
    (16, 410, 20000): _BASE_WIKITEXT,
    (16, 512, 19997): _BASE_WIKITEXT,
    (18, 1024, 19997): _LARGE_WIKITEXT,
    (24, 1280, 60000): {**_SENTENCES, "dropout": 0.05, "attention_dropout": 0.05},
    (18, 1024, 60000): {**_SENTENCES, "dropout": 0.1},
}


def published_settings(sizes: dict[str, Any]) -> dict[str, Any]:
    """Settings of the published model of these sizes.

    Args:
        sizes: dict with `num_layers`, `hidden_dim` and `cutoffs`.

    Returns:
        Dict of fields of `ModelConfig`; empty for any other model.
    """
    cutoffs = sizes.get("cutoffs") or (None,)
    return dict(_SETTINGS.get((sizes["num_layers"], sizes["hidden_dim"], cutoffs[0]), {}))
