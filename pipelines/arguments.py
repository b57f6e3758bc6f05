"""Argument types and groups that several jobs share, such as `--config` and `--set`."""

import argparse
import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txl_tf.config.base import MAX_TOKENS, shown_value
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.distribution.server_address import ANSWER_SECONDS, tpu_addresses
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    MismatchError,
    UsageError,
    did_you_mean,
)
from txl_tf.storage.files import read_file
from txl_tf.storage.untrusted_files import check_values, parse_json, storage_errors

from .configs import NAMED_EXPERIMENTS

MAX_COUNT = 2**31 - 1
"""Limit of numbers that are int32 somewhere."""
MAX_STEP = 2**63 - 1
"""Limit of numbers that are only compared, such as the step of a checkpoint."""
MAX_SECONDS = 10 * 365 * 86_400
"""Limit of waiting times."""
STANDARD_INPUT = "-"
"""Name of the standard input in place of a file."""

# CPU replicas that every machine may have; a machine with more cores may have one per core.
_MIN_MAX_REPLICAS = 64
_MAX_FILE_BYTES = 1 << 20
_VOCABULARY = re.compile(r"\s*model\.vocabulary_size\s*=")


def _in_range(option: str, least: float, most: float) -> Callable[[str], Any]:
    """Returns the argparse type of a number in a range; whole numbers if `least` is an int."""
    kind = type(least)

    def read(text: str) -> float:
        value = kind(text)
        # Negated, so that NaN is refused too.
        if not least <= value <= most:
            raise UsageError(
                "The value is out of range.",
                where=f"{option} {shown_value(value)}",
                remedy=f"Give {least} to {most}.",
            )
        return value

    # argparse shows this name if the text is no number.
    read.__name__ = kind.__name__
    return read


def add_number(
    parser: Any,
    option: str,
    least: float,
    most: float,
    meaning: str,
    *,
    default: float | None = None,
    metavar: str = "N",
) -> None:
    """Adds an option with a number; a number out of range is a UsageError."""
    if default is not None:
        meaning += f" (default: {f'{default:g}' if isinstance(default, float) else default})"
    number = _in_range(option, least, most)
    parser.add_argument(option, type=number, default=default, metavar=metavar, help=meaning)


def add_numbers(
    parser: Any, option: str, least: int, most: int, meaning: str, *, unit: str, **settings: Any
) -> None:
    """Adds an option with comma-separated whole numbers; `settings` go to argparse."""
    if "default" in settings:
        meaning += f" (default: {settings['default']})"
    number = _in_range(option, least, most)

    def numbers(text: str) -> list[int]:
        try:
            return [number(part) for part in text.split(",")]
        except ValueError as error:
            what = "Lengths must be whole numbers, separated by commas."
            raise UsageError(what, where=f"{option} {text}") from error

    parser.add_argument(option, type=numbers, metavar=f"{unit},...", help=meaning, **settings)


def _tpu(text: str) -> str:
    tpu_addresses(text)
    return text


def add_tpu_argument(parser: Any, meaning: str) -> None:
    """Adds `--tpu` to a parser or group of arguments."""
    parser.add_argument("--tpu", metavar="local|NAME|ADDRESS", type=_tpu, help=meaning)


def add_device_arguments(parser: Any, use: str) -> None:
    """Adds `--tpu` and `--cpu-replicas`, which exclude each other."""
    device = parser.add_argument_group("devices").add_mutually_exclusive_group()
    add_tpu_argument(device, f"{use} this TPU; it has {ANSWER_SECONDS:g} s to answer")
    most = max(_MIN_MAX_REPLICAS, os.cpu_count() or 1)
    meaning = "replicas of the CPU, each with all weights"
    add_number(device, "--cpu-replicas", 1, most, meaning, default=1)


def add_step_argument(parser: Any, option: str = "--step") -> None:
    """Adds `--step`, or another option with the same values."""
    meaning = "number, best or newest (default: best known)"
    parser.add_argument(option, metavar="STEP", type=_step, help=meaning)


def _step(text: str) -> int | str:
    if text in ("best", "newest"):
        return text
    if text.isascii() and text.isdecimal() and int(text[:20]) <= MAX_STEP:
        return int(text)
    raise UsageError("The step must be a number, best or newest.", where=text[:100])


def add_model_argument(parser: Any) -> None:
    """Adds `--workdir` of a job that reads any model."""
    meaning = "folder of a run, checkpoint, converted model or export"
    parser.add_argument("--workdir", metavar="DIR", required=True, help=meaning)


def add_model_arguments(parser: Any) -> Any:
    """Adds the group of `--workdir` and `--step`, and returns it."""
    group = parser.add_argument_group("model")
    add_model_argument(group)
    add_step_argument(group)
    return group


def add_memory_length_argument(parser: Any) -> None:
    """Adds `--memory-length`."""
    meaning = "tokens remembered (default: the model's)"
    add_number(parser, "--memory-length", 0, MAX_TOKENS, meaning, metavar="TOKENS")


def add_config_argument(parser: Any, **settings: Any) -> None:
    """Adds `--config`; `settings` go to argparse."""
    settings = {"help": "named experiment or .json or .toml file", **settings}
    parser.add_argument("--config", metavar="NAME|FILE", **settings)


def add_json_argument(parser: Any) -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def add_override_argument(
    parser: Any,
    metavar: str = "SECTION.FIELD=VALUE",
    meaning: str = "change a setting; may be repeated",
) -> None:
    """Adds `--set`."""
    parser.add_argument(
        "--set", metavar=metavar, action="append", default=[], dest="overrides", help=meaning
    )


def load_experiment(
    source: str,
    overrides: list[str],
    *,
    vocabulary_size: int | None = None,
    model: ModelConfig | LSTMConfig | QRNNConfig | None = None,
) -> ExperimentConfig:
    """Reads a named experiment, or a JSON or TOML file with an optional `base`; applies `--set`.

    `vocabulary_size` and `model` fill in what the file leaves out; cutoffs beyond the vocabulary
    are dropped. A missing source is an InputMissingError, a wrong value a UsageError.
    """
    stated: dict[str, Any] = {"base": source}
    where, remedy = f"--config {source}", "Correct the file."
    try:
        if source not in NAMED_EXPERIMENTS:
            stated = read_settings(Path(source))
        values = _with_base(stated)
        if model is not None and "model" not in values:
            values["model"] = model.to_dict()
        fit_vocabulary(values, stated.get("model"), overrides, vocabulary_size)
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
    values: dict[str, Any], stated: Any, overrides: list[str], vocabulary_size: int | None
) -> None:
    """Sets the vocabulary size to the data's unless it is stated, and drops cutoffs beyond it.

    A size from `--set` limits the cutoffs too.
    """
    model = values.get("model")
    if not isinstance(model, dict):
        return
    stated = stated if isinstance(stated, dict) else {}
    sizes = [text.partition("=")[2].strip() for text in overrides if _VOCABULARY.match(text)]
    if sizes:
        size = int(sizes[-1]) if re.fullmatch("[0-9]{1,9}", sizes[-1]) else None
    else:
        if vocabulary_size is not None and "vocabulary_size" not in stated:
            model["vocabulary_size"] = vocabulary_size
        size = model.get("vocabulary_size")
    if isinstance(size, int) and model.get("cutoffs") and "cutoffs" not in stated:
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
    merged = NAMED_EXPERIMENTS[base]().to_dict()
    for section, fields in changes.items():
        is_same_kind = isinstance(fields, dict) and "kind" not in fields
        merged[section] = {**merged.get(section, {}), **fields} if is_same_kind else fields
    return merged


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
        check_values(values)
        return values
    values = parse_json(content)
    if not isinstance(values, dict):
        raise ValueError(f"A configuration must be an object. Received: {type(values).__name__}")
    return values


def override(experiment: ExperimentConfig, overrides: list[str]) -> ExperimentConfig:
    """Applies `--set`; UsageError for a wrong value, MismatchError for a misfit with the model."""
    where = " ".join(f"--set {text[:200]}" for text in overrides[:100])
    try:
        changed = experiment.with_overrides(overrides)
    except ValueError as error:
        raise UsageError(f"{error}", where=where) from error
    try:
        changed.evaluation.check_windows(changed.model)
    except ValueError as error:
        raise MismatchError(f"{error}", where=where) from error
    return changed


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """Returns the settings of `--set` and `--freeze`."""
    overrides = list(arguments.overrides)
    if arguments.freeze is not None:
        overrides.append(f"training.freeze={json.dumps(arguments.freeze)}")
    return overrides


def overridden_settings(overrides: list[str]) -> set[str]:
    """Returns the names of the settings that `--set` gives, such as `training.num_steps`."""
    return {text.partition("=")[0].strip() for text in overrides}


def check_text_file(path: str) -> None:
    """Raises InputMissingError for a missing file, and UsageError for a folder."""
    if path == STANDARD_INPUT:
        return
    if os.path.isdir(path):
        remedy = "Give the path of a text file. Only `txl prepare` reads folders."
        raise UsageError("The path is a folder.", where=f"--text {path}", remedy=remedy)
    if not os.path.exists(path):
        raise InputMissingError("There is no such file.", where=f"--text {path}")
