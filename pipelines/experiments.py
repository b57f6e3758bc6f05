"""Finds an experiment by name or file, and applies the overrides."""

import argparse
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipelines.configs.enwik8 import enwik8_18_layers, enwik8_base, enwik8_large
from pipelines.configs.lm1b import lm1b_base, lm1b_large
from pipelines.configs.nvidia_wikitext103 import (
    nvidia_wikitext103_base,
    nvidia_wikitext103_large,
)
from pipelines.configs.penn_treebank import penn_treebank
from pipelines.configs.quickstart import quickstart
from pipelines.configs.text8 import text8_base, text8_large
from pipelines.configs.wikitext103 import wikitext103_base, wikitext103_large
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.errors import InputMissingError, UsageError

NAMED_EXPERIMENTS: dict[str, Callable[[], ExperimentConfig]] = {
    "quickstart": quickstart,
    "enwik8_18_layers": enwik8_18_layers,
    "enwik8_base": enwik8_base,
    "enwik8_large": enwik8_large,
    "lm1b_base": lm1b_base,
    "lm1b_large": lm1b_large,
    "nvidia_wikitext103_base": nvidia_wikitext103_base,
    "nvidia_wikitext103_large": nvidia_wikitext103_large,
    "penn_treebank": penn_treebank,
    "text8_base": text8_base,
    "text8_large": text8_large,
    "wikitext103_base": wikitext103_base,
    "wikitext103_large": wikitext103_large,
}


def add_override_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--set`."""
    parser.add_argument(
        "--set",
        metavar="SECTION.FIELD=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="change one value of the configuration; may be repeated",
    )


def load_experiment(source: str, overrides: list[str]) -> ExperimentConfig:
    """Reads an experiment.

    Args:
        source: str. A name of `NAMED_EXPERIMENTS`, or a `.json` or `.toml`
            file with the sections of `ExperimentConfig`.
        overrides: list of str, see `ExperimentConfig.with_overrides`.

    Returns:
        The experiment.

    Raises:
        InputMissingError: If there is neither such a name nor such a file.
        UsageError: If a value is not valid.
    """
    if source in NAMED_EXPERIMENTS:
        return override(NAMED_EXPERIMENTS[source](), overrides)
    path = Path(source)
    if not path.is_file():
        raise InputMissingError(
            "There is no configuration of this name and no such file.",
            where=f"--config {source}",
            remedy=f"Names are: {', '.join(NAMED_EXPERIMENTS)}; files end in .json or .toml.",
        )
    try:
        experiment = ExperimentConfig.from_dict(_read(path))
    except (ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{error}".replace("\n", " "), where=str(path)) from error
    return override(experiment, overrides)


def override(experiment: ExperimentConfig, overrides: list[str]) -> ExperimentConfig:
    """Applies `--set`.

    Args:
        experiment: `ExperimentConfig`.
        overrides: list of str.

    Returns:
        The changed experiment.

    Raises:
        UsageError: If a name or value is not valid.
    """
    try:
        return experiment.with_overrides(overrides)
    except ValueError as error:
        where = " ".join(f"--set {text}" for text in overrides)
        raise UsageError(f"{error}".replace("\n", " "), where=where) from error


def _read(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"A configuration is an object. Received: {type(values).__name__}")
    return values
