"""Generation options that `txl generate` and `txl export` share."""

import argparse
from typing import Any

from txl_tf.config.generation import GenerationConfig
from txl_tf.errors import UsageError

from .arguments import MAX_COUNT, add_number

_MOST = 1e6
_NUMBERS = {
    "max_tokens": (1, MAX_COUNT, "most tokens to write"),
    "temperature": (0.0, _MOST, "divisor of logits; 0 is greedy"),
    "top_k": (0, MAX_COUNT, "only the N most probable; 0 is all"),
    "top_p": (1e-6, 1.0, "only the most probable up to this sum"),
    "min_p": (0.0, 1.0, "only this share of the best"),
    "repetition_penalty": (1.0, _MOST, "of used tokens; 1.2 is usual"),
    "seed": (0, MAX_COUNT, "same seed, same text"),
}
OF_DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")
"""Options of sampling, which beam search does not use."""


def add_generation_arguments(parser: Any) -> None:
    """Adds an option for each field of `GenerationConfig`, `None` by default."""
    defaults = GenerationConfig()
    for name, (least, most, meaning) in _NUMBERS.items():
        default = getattr(defaults, name)
        shown = "a new one" if default is None else f"{default:g}"
        add_number(parser, option_of(name), least, most, f"{meaning} (default: {shown})")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text"
    )
    meaning = "let unknown words be written"
    parser.add_argument("--allow-unknown", action="store_true", help=meaning)


def option_of(name: str) -> str:
    """Returns the option of a field, such as `--top-k`."""
    return f"--{name.replace('_', '-')}"


def generation_config(arguments: argparse.Namespace, **defaults: Any) -> GenerationConfig:
    """Returns the settings of the arguments, with `defaults` for options that were not given."""
    for text in arguments.stop:
        if not text or not is_utf8(text):
            raise UsageError(
                "A text to end before has at least one character, in UTF-8.",
                where=f"--stop {text!a}",
            )
    given = {name: getattr(arguments, name) for name in _NUMBERS}
    given = {name: value for name, value in given.items() if value is not None}
    return GenerationConfig(
        **{**defaults, **given}, stop=arguments.stop, allow_unknown=arguments.allow_unknown
    )


def is_utf8(text: str) -> bool:
    """Returns true if an argument is UTF-8; other bytes are surrogates in its text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
