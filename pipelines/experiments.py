"""Finds an experiment by name or file, and applies the overrides."""

import argparse
import os
import re
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
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError, UsageError
from txl_tf.file_storage import first_line, read_file
from txl_tf.json_text import check_values, parse_json

_MAX_FILE_BYTES = 1 << 20
_MAX_KEY_PARTS = 64
_WORD = rb"[\w\"'-]"
_DEEP_KEY = re.compile(rb"(?<!%b)(?:%b++[ \t]*+\.[ \t]*+){%d}" % (_WORD, _WORD, _MAX_KEY_PARTS))
_REMEDY = "Correct the file."

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
    if not os.path.isfile(path):  # `Path.is_file` raises for a name that is too long
        raise InputMissingError(
            "There is no configuration of this name and no such file.",
            where=f"--config {source}",
            remedy=f"Names are: {', '.join(NAMED_EXPERIMENTS)}; files end in .json or .toml.",
        )
    try:
        experiment = ExperimentConfig.from_dict(read_settings(path))
    except ValueError as error:
        raise UsageError(f"{error}", where=str(path), remedy=_REMEDY) from error
    return override(experiment, overrides)


def read_settings(path: Path) -> dict[str, Any]:
    """Reads a file of settings, TOML or JSON by its ending, strictly.

    Args:
        path: path of the file.

    Returns:
        Its sections.

    Raises:
        ValueError: If it is not well-formed, a name stands twice, or a value is
            none that a setting can have.
        UsageError: If it is no regular file, or longer than any of settings is.
        StorageError: If it cannot be read.
    """
    try:
        content = read_file(str(path), max_bytes=_MAX_FILE_BYTES)
    except DataDamagedError as error:
        raise UsageError(error.what, where=error.where, remedy=_REMEDY) from error
    except OSError as error:
        what = f"The file cannot be read: {first_line(error)}"
        raise StorageError(what, where=str(path), remedy="Check the permissions.") from error
    if path.suffix != ".toml":
        values = parse_json(content)
        if not isinstance(values, dict):
            raise ValueError(f"A configuration is an object. Received: {type(values).__name__}")
        return values
    if _DEEP_KEY.search(content):
        # Parsing one takes a time that grows with the square of its length.
        raise ValueError(f"A key must have fewer than {_MAX_KEY_PARTS} parts.")
    try:
        values = tomllib.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("Lists and tables are nested too deep.") from error
    check_values(values)
    return values


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
        where = " ".join(f"--set {text[:200]}" for text in overrides[:100])
        raise UsageError(f"{error}", where=where) from error
