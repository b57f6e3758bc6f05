"""Argument types and groups that several jobs share, such as `--config` and `--set`."""

import argparse
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from txl_tf.config.experiment import EvaluatedModel
from txl_tf.config.generation import MOST_BIAS, GenerationConfig
from txl_tf.config.limits import MAX_TOKENS
from txl_tf.config.setting_values import shown_value
from txl_tf.distribution.server_address import ANSWER_SECONDS, tpu_addresses
from txl_tf.errors import InputMissingError, MismatchError, UsageError

Model = TypeVar("Model", bound=EvaluatedModel)

MAX_COUNT = 2**31 - 1
"""Limit of numbers that are int32 somewhere."""
MAX_STEP = 2**63 - 1
"""Limit of numbers that are only compared, such as the step of a checkpoint."""
STANDARD_INPUT = "-"
"""Name of the standard input in place of a file."""

# CPU replicas that every machine may have; a machine with more cores may have one per core.
_MIN_MAX_REPLICAS = 64
_MOST_FACTOR = 1e6

NUMBERS_OF_TEXT = {
    "max_tokens": (1, MAX_COUNT, "most tokens to write"),
    "temperature": (0.0, _MOST_FACTOR, "divides the logits; 0 takes the most probable token"),
    "top_k": (0, MAX_COUNT, "draw from the N most probable tokens; 0: from all"),
    "top_p": (1e-6, 1.0, "draw from the most probable tokens, up to this total probability"),
    "min_p": (0.0, 1.0, "least probability, as a share of the highest"),
    "repetition_penalty": (1.0, _MOST_FACTOR, "lowers the scores of used tokens; 1.2 is usual"),
    "frequency_penalty": (-2.0, 2.0, "subtracted from a logit for each time the token was written"),
    "presence_penalty": (-2.0, 2.0, "subtracted from the logits of tokens that were written"),
    "seed": (0, MAX_COUNT, "the same seed writes the same text"),
}
"""Numbers that decide a written text: least, most, and help of each."""
OF_DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")
"""Options of sampling, which beam search does not use."""


def option_of(name: str) -> str:
    """Returns the option of a name of Python, such as `--top-k`."""
    return f"--{name.replace('_', '-')}"


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
                remedy=f"Give a number from {least} to {most}.",
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


def _tpu(text: str) -> str:
    tpu_addresses(text)
    return text


def add_tpu_argument(parser: Any, meaning: str) -> None:
    """Adds `--tpu` to a parser or group of arguments."""
    parser.add_argument("--tpu", metavar="local|NAME|ADDRESS", type=_tpu, help=meaning)


def add_device_arguments(parser: Any, use: str) -> None:
    """Adds `--tpu` and `--cpu-replicas`, which exclude each other."""
    device = parser.add_argument_group("devices").add_mutually_exclusive_group()
    add_tpu_argument(device, f"{use} this TPU; ends if none answers in {ANSWER_SECONDS:g} s")
    add_number(
        device,
        "--cpu-replicas",
        1,
        max(_MIN_MAX_REPLICAS, os.cpu_count() or 1),
        "parts of the CPU that share the work, each with all weights",
        default=1,
    )


def add_step_argument(parser: Any, option: str = "--step") -> None:
    """Adds `--step`, or another option with the same values."""
    parser.add_argument(
        option,
        metavar="STEP",
        type=_step,
        help="number, best or newest (default: best, else newest)",
    )


def _step(text: str) -> int | str:
    if text in ("best", "newest"):
        return text
    if text.isascii() and text.isdecimal() and int(text[:20]) <= MAX_STEP:
        return int(text)
    raise UsageError("A step must be 0 to 2^63 - 1, best or newest.", where=f"step {text[:100]}")


def add_workdir_argument(parser: Any) -> None:
    """Adds `--workdir`."""
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")


def add_model_argument(parser: Any) -> None:
    """Adds `--workdir` of a job that reads any model."""
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        required=True,
        help="folder of a run, checkpoint, converted model or export",
    )


def add_model_arguments(parser: Any) -> Any:
    """Adds the group of `--workdir` and `--step`, and returns it."""
    group = parser.add_argument_group("model")
    add_model_argument(group)
    add_step_argument(group)
    return group


def add_memory_length_argument(parser: Any) -> None:
    """Adds `--memory-length`."""
    add_number(
        parser,
        "--memory-length",
        0,
        MAX_TOKENS,
        "tokens of memory (default: the model's)",
        metavar="TOKENS",
    )


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


def add_evaluation_argument(parser: Any) -> None:
    """Adds `--set` of a job that can only change the settings of evaluations."""
    add_override_argument(parser, "evaluation.FIELD=VALUE")


def override_evaluation(model: Model, overrides: list[str]) -> Model:
    """Applies `--set` to a trained model; UsageError for settings that are not of evaluations."""
    for assignment in overrides:
        if not assignment.startswith("evaluation."):
            raise UsageError(
                "Only `evaluation.*` settings can be changed for a trained model.",
                where=f"--set {assignment}",
                remedy="Leave this --set out; `txl train` begins a run with other settings.",
            )
    return override(model, overrides)


def override(model: Model, overrides: list[str]) -> Model:
    """Applies `--set`; UsageError for a wrong value, MismatchError for a misfit with the model."""
    where = " ".join(f"--set {text[:200]}" for text in overrides[:100])
    try:
        description = model.with_overrides(overrides)
    except ValueError as error:
        raise UsageError(
            f"{error}",
            where=where,
            remedy="Values are JSON, such as 0.001, null, true, [100, 200], or plain text.",
        ) from error
    try:
        description.evaluation.check_model(description.model)
    except ValueError as error:
        raise MismatchError(f"{error}", where=where) from error
    return description


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """Returns the settings of `--set` and `--freeze`."""
    overrides = list(arguments.overrides)
    if arguments.freeze is not None:
        overrides.append(f"training.freeze={json.dumps(arguments.freeze)}")
    return overrides


def overridden_settings(overrides: list[str]) -> dict[str, str]:
    """Returns the values that `--set` gives, by names such as `training.num_steps`."""
    parts = (text.partition("=") for text in overrides)
    return {name.strip(): value.strip() for name, _, value in parts}


def check_text_file(path: str) -> None:
    """Raises InputMissingError for a missing file, and UsageError for a folder."""
    if path == STANDARD_INPUT:
        return
    if os.path.isdir(path):
        raise UsageError(
            "The path is a folder.",
            where=f"--text {path}",
            remedy="Give the path of a text file. Only `txl prepare` reads folders.",
        )
    if not os.path.exists(path):
        raise InputMissingError("There is no such file.", where=f"--text {path}")


def sentence(summary: str) -> str:
    """Returns a summary in lower case as a sentence."""
    return f"{summary[0].upper()}{summary[1:]}."


def add_generation_arguments(parser: Any) -> None:
    """Adds an option for each field of `GenerationConfig`, by default without a value."""
    defaults = GenerationConfig()
    for name, (least, most, meaning) in NUMBERS_OF_TEXT.items():
        default = getattr(defaults, name)
        text = "a new one" if default is None else f"{default:g}"
        add_number(parser, option_of(name), least, most, f"{meaning} (default: {text})")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text"
    )
    parser.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        type=id_and_number,
        metavar="ID=NUMBER",
        help="add NUMBER, -100 to 100, to the logit of the token ID",
    )
    parser.add_argument(
        "--allow-unknown", action="store_true", help="allow the token of unknown words"
    )


def id_and_number(text: str) -> tuple[int, float]:
    """Reads the value of `--logit-bias`."""
    token_id, _, number = text.partition("=")
    return int(token_id), float(number)


def generation_config(
    arguments: argparse.Namespace, vocabulary_size: int, **defaults: Any
) -> GenerationConfig:
    """Returns the settings of the arguments, with `defaults` for options that were not given."""
    for text in arguments.stop:
        if not text or not is_utf8(text):
            raise UsageError(
                "A stop text must have at least one character, in UTF-8.", where=f"--stop {text!a}"
            )
    for token_id, number in arguments.logit_bias:
        if not 0 <= token_id < vocabulary_size or not abs(number) <= MOST_BIAS:
            raise UsageError(
                f"A bias needs an id below {vocabulary_size}, and -{MOST_BIAS} to {MOST_BIAS}.",
                where=f"--logit-bias {token_id}={number:g}",
            )
    numbers = {name: getattr(arguments, name) for name in NUMBERS_OF_TEXT}
    numbers = {name: value for name, value in numbers.items() if value is not None}
    others = {name: getattr(arguments, name) for name in ("stop", "logit_bias", "allow_unknown")}
    return GenerationConfig(**{**defaults, **numbers, **others})


def is_utf8(text: str) -> bool:
    """True if the text of an argument was UTF-8; other bytes are surrogates in it."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
