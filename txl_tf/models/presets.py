"""Models by name: three small ones for two CPU cores, and the published ones of `presets.toml`."""

import tomllib
from pathlib import Path
from typing import Any

from txl_tf.config.model import ModelConfig
from txl_tf.errors import did_you_mean

_TABLES = tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8"))


def _sizes(name: str) -> dict[str, Any]:
    sizes = dict(_TABLES[name])
    base = sizes.pop("base", None)
    return {**(_sizes(base) if base else {}), **sizes}


PRESETS = {name: ModelConfig.from_dict(_sizes(name)) for name in sorted(_TABLES)}
"""Models by name."""


def preset(name: str) -> ModelConfig:
    """Returns the configuration of a model by its name.

    Args:
        name: str. A key of `PRESETS`.

    Returns:
        A `ModelConfig`.

    Raises:
        ValueError: If the name is unknown.

    Example:
    ```python
    config = txl_tf.preset("enwik8_base").replace(memory_length=2100)
    ```
    """
    if name not in PRESETS:
        raise ValueError(
            f"`name` must be one of {', '.join(sorted(PRESETS))}.{did_you_mean(name, PRESETS)} "
            f"Received: {name}"
        )
    return PRESETS[name]
