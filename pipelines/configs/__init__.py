"""Experiments by name, and from files with an optional base: `--config NAME|FILE`."""

import functools
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import AnyModelConfig
from txl_tf.config.setting_values import parse_setting, shown_value
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    UsageError,
    did_you_mean,
    storage_errors,
)
from txl_tf.models.presets import preset
from txl_tf.storage.files import read_file
from txl_tf.storage.strict_json import check_values, parse_json

from ..shell.arguments import overridden_settings, override

_SECTIONS = tomllib.loads((Path(__file__).parent / "experiments.toml").read_text("utf-8"))
_MAX_FILE_BYTES = 1 << 20


def _experiment(name: str) -> ExperimentConfig:
    """Returns the experiment that trains the preset of the same name, in the faster precision."""
    training = {"dtype_policy": "auto", **_SECTIONS[name]["training"]}
    sections = {"model": preset(name).to_dict(), **_SECTIONS[name], "training": training}
    return ExperimentConfig.from_dict(sections)


NAMED_EXPERIMENTS: dict[str, Callable[[], ExperimentConfig]] = {
    name: functools.partial(_experiment, name) for name in _SECTIONS
}
"""Experiments by name."""


def load_experiment(
    source: str,
    overrides: list[str],
    *,
    vocabulary_size: int | None = None,
    model: AnyModelConfig | None = None,
) -> ExperimentConfig:
    """Reads a named experiment, or a JSON or TOML file with an optional `base`; applies `--set`.

    `vocabulary_size` and `model` fill in what the file leaves out; cutoffs beyond the vocabulary
    are dropped. A missing source is an InputMissingError, a wrong value a UsageError.
    """
    settings: dict[str, Any] = {"base": source}
    where, remedy = f"--config {source}", "Correct the file or --set."
    try:
        if source not in NAMED_EXPERIMENTS:
            settings = read_settings(Path(source))
        values = _with_base(settings)
        if model is not None and "model" not in values:
            values["model"] = model.to_dict()
        fit_vocabulary(values, settings.get("model"), overrides, vocabulary_size)
        experiment = ExperimentConfig.from_dict(values)
    except FileNotFoundError as error:
        raise InputMissingError(
            f"No experiment and no file has this name.{did_you_mean(source, NAMED_EXPERIMENTS)}",
            where=where,
            remedy=f"Give a .json or .toml file, or one of: {', '.join(NAMED_EXPERIMENTS)}.",
        ) from error
    except ValueError as error:
        raise UsageError(f"{error}", where=where, remedy=remedy) from error
    return override(experiment, overrides)


def fit_vocabulary(
    values: dict[str, Any], settings: Any, overrides: list[str], vocabulary_size: int | None
) -> None:
    """Sets the vocabulary size to the data's unless it is stated, and drops cutoffs beyond it.

    A size from `--set` limits the cutoffs too.
    """
    model = values.get("model")
    if not isinstance(model, dict):
        return
    settings = settings if isinstance(settings, dict) else {}
    override = overridden_settings(overrides).get("model.vocabulary_size")
    if override is None and vocabulary_size is not None and "vocabulary_size" not in settings:
        model["vocabulary_size"] = vocabulary_size
    size = model.get("vocabulary_size") if override is None else parse_setting(override)
    if isinstance(size, int) and model.get("cutoffs") and "cutoffs" not in settings:
        model["cutoffs"] = [first_id for first_id in model["cutoffs"] if first_id < size]


def _with_base(values: dict[str, Any]) -> dict[str, Any]:
    """Merges the values of a file into the experiment that it names as its `base`."""
    base, changes = values.get("base"), {key: values[key] for key in values if key != "base"}
    if base is None:
        return changes
    if base not in NAMED_EXPERIMENTS:
        raise ValueError(
            f"`base` must be one of {', '.join(NAMED_EXPERIMENTS)}."
            f"{did_you_mean(str(base), NAMED_EXPERIMENTS)} Received: base={shown_value(base)}"
        )
    experiment = NAMED_EXPERIMENTS[base]().to_dict()
    for section, fields in changes.items():
        is_same_kind = isinstance(fields, dict) and "kind" not in fields
        experiment[section] = {**experiment.get(section, {}), **fields} if is_same_kind else fields
    return experiment


def read_settings(path: Path) -> dict[str, Any]:
    """Reads the sections of a TOML or JSON file of settings, strictly.

    A file that is malformed, repeats a name or has a value of an impossible type is a ValueError,
    a missing one a FileNotFoundError, one that is too long or not regular a UsageError.
    """
    if not os.path.isfile(path):  # `Path.is_file` raises for too long names
        raise FileNotFoundError(path)
    try:
        with storage_errors("The file cannot be read", str(path), "Check the permissions."):
            content = read_file(str(path), max_bytes=_MAX_FILE_BYTES)
    except DataDamagedError as error:
        raise UsageError(error.what, where=error.where, remedy="Correct the file.") from error
    if path.suffix == ".toml":
        try:
            values = tomllib.loads(content.decode("utf-8"))
        except RecursionError as error:
            raise ValueError("Lists and tables are nested too deep.") from error
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"The file is not TOML: {error}") from error
        check_values(values)
        return values
    try:
        values = parse_json(content)
    except json.JSONDecodeError as error:
        before, after = error.doc[: error.pos].rstrip(), error.doc[error.pos :]
        has_comma = before.endswith(",") and after[:1] in ("]", "}")
        reason = "a comma before a closing bracket" if has_comma else error.msg
        raise ValueError(
            f"The file is not JSON: {reason}, line {error.lineno}, column {error.colno}. "
            "Files are JSON, or TOML with the ending .toml; YAML is not read."
        ) from error
    if not isinstance(values, dict):
        raise ValueError(
            f"A configuration file must hold a JSON object. Received: {type(values).__name__}"
        )
    return values
