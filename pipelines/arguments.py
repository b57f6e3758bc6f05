"""Argument types and groups that several jobs share, such as `--experiment` and `--set`."""

import argparse
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipelines.configs.published import (
    enwik8_18_layers,
    enwik8_base,
    enwik8_large,
    lm1b_base,
    lm1b_large,
    nvidia_wikitext103_base,
    nvidia_wikitext103_large,
    penn_treebank,
    text8_base,
    text8_large,
    wikitext103_base,
    wikitext103_large,
)
from pipelines.configs.quickstart import quickstart
from pipelines.memory_needs import check_cpu_replicas
from txl_tf.config.base import shown_value
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.server_address import ANSWER_SECONDS, tpu_addresses
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError, UsageError
from txl_tf.storage.files import first_line, read_file
from txl_tf.storage.json_text import check_values, parse_json

MAX_COUNT = 2**31 - 1
"""Of what is counted in int32 somewhere."""
MAX_STEP = 2**63 - 1
"""Of what is only compared, such as the number of a checkpoint."""
MAX_SECONDS = 10 * 365 * 86_400
"""Of what is waited for."""


def require_range(arguments: argparse.Namespace, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Refuses a number that is out of its range.

    Args:
        arguments: `argparse.Namespace`. `None` in it stands for a default.
        ranges: mapping from the name of an argument to its least and largest value.

    Raises:
        UsageError: If a value is less or more, or not a number.
    """
    for name, (least, most) in ranges.items():
        value = getattr(arguments, name)
        # Written so that NaN, which is neither less nor more, is refused too.
        if value is not None and not least <= value <= most:
            raise out_of_range(flag_of(name), value, least, most)


def out_of_range(option: str, value: float, least: float, most: float) -> UsageError:
    """Creates the error of a number that is out of its range.

    Args:
        option: str. Such as `--rows`.
        value: the number.
        least: the least it can be.
        most: the largest it can be.
    """
    return UsageError(
        "The value is out of range.",
        where=f"{option} {shown_value(value)}",
        remedy=f"Give {least} to {most}.",
    )


def flag_of(name: str) -> str:
    """Returns the option of an argument: `--num-tokens` for `num_tokens`."""
    return "--" + name.replace("_", "-")


def lengths(text: str, option: str, *, least: int, most: int, max_count: int = 1000) -> list[int]:
    """Reads whole numbers with commas between them.

    Args:
        text: str.
        option: str. Such as `--context`.
        least: int. The least that one can be.
        most: int. The largest that one can be.
        max_count: int. How many there may be.

    Returns:
        List of int.

    Raises:
        UsageError: If they are no such numbers, or too many.
    """
    parts = text.split(",")
    if len(parts) > max_count:
        raise UsageError(f"There are at most {max_count} numbers.", where=option)
    try:
        numbers = [int(part) for part in parts]
    except ValueError as error:
        raise UsageError(
            "Lengths are whole numbers, with commas between them.", where=f"{option} {text}"
        ) from error
    for number in numbers:
        if not least <= number <= most:
            raise out_of_range(option, number, least, most)
    return numbers


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


def add_device_arguments(parser: argparse.ArgumentParser, use: str) -> None:
    """Adds `--tpu` and `--cpu-replicas`.

    Args:
        parser: `argparse.ArgumentParser`.
        use: str. What the job does with a TPU, such as `train on`.
    """
    parser.add_argument(
        "--tpu",
        metavar="local|NAME|ADDRESS",
        help=f"{use} this TPU; one that does not answer is given up after {ANSWER_SECONDS:g} s",
    )
    parser.add_argument(
        "--cpu-replicas",
        type=int,
        default=1,
        metavar="N",
        help="split the CPU into N replicas (default: 1)",
    )


def check_devices(arguments: argparse.Namespace) -> None:
    """Checks `--tpu` and `--cpu-replicas`.

    Raises:
        UsageError: If both are given, or one cannot be.
    """
    check_cpu_replicas(arguments.cpu_replicas)
    if arguments.tpu is None:
        return
    tpu_addresses(arguments.tpu)
    if arguments.cpu_replicas > 1:
        raise UsageError(
            "A job has either a TPU or CPU replicas.",
            where=f"--tpu {arguments.tpu} --cpu-replicas {arguments.cpu_replicas}",
            remedy="Leave one of the two out.",
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
