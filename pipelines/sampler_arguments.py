"""Options of samplers that generation and export share, and the sampler that they choose."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from txl_tf.errors import UsageError

from .arguments import MAX_COUNT, add_number

if TYPE_CHECKING:
    from txl_tf.generation import Sampler

_SAMPLERS = ("greedy", "random", "top_k", "top_p", "min_p")
_LEAST, _MOST = 1e-6, 1e6
# Default of each option of a sampler, and the samplers that read it.
_SAMPLER_OPTIONS = {
    "temperature": (1.0, ("random", "top_k", "top_p", "min_p")),
    "k": (40, ("top_k",)),
    "p": (0.9, ("top_p",)),
    "min_p": (0.05, ("min_p",)),
}


def add_sampler_arguments(parser: Any) -> None:
    """Adds `--sampler` with its options, and `--stop`."""
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text"
    )
    parser.add_argument(
        "--sampler",
        choices=_SAMPLERS,
        metavar="KIND",
        help=f"{', '.join(_SAMPLERS)} (default: top_p)",
    )
    # None tells an option that was not given, which no sampler may refuse, from its default.
    meaning = "divisor of the logits (default: 1)"
    add_number(parser, "--temperature", _LEAST, _MOST, meaning)
    add_number(parser, "--k", 1, MAX_COUNT, "candidates of top_k (default: 40)")
    add_number(parser, "--p", _LEAST, 1, "probability of top_p (default: 0.9)")
    meaning = "least share of the best, of min_p (default: 0.05)"
    add_number(parser, "--min-p", _LEAST, 1, meaning)


def take_sampler_options(arguments: argparse.Namespace, instead: str | None = None) -> None:
    """Refuses options that the sampler does not read, and gives the others their defaults.

    Args:
        arguments: the parsed arguments, which change.
        instead: optional str. Option that takes the place of a sampler.

    Raises:
        UsageError: If the sampler has no use for an option, or a stop text is not text.
    """
    for text in arguments.stop:
        if not text or not is_utf8(text):
            raise UsageError(
                "A text to end before has at least one character, in UTF-8.",
                where=f"--stop {text!a}",
            )
    sampler = arguments.sampler or "top_p"
    for name, (default, samplers) in _SAMPLER_OPTIONS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
        elif instead is not None or sampler not in samplers:
            chosen = instead or f"--sampler {sampler}"
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{chosen} has no use for {option}.",
                where=f"{option} {getattr(arguments, name)}",
                remedy=f"Leave it out, or choose --sampler {' or '.join(samplers)}.",
            )
    arguments.sampler = sampler


def is_utf8(text: str) -> bool:
    """Returns whether an argument is UTF-8; bytes that are not are surrogates in its text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def chosen_sampler(arguments: argparse.Namespace) -> "Sampler":
    """Returns the sampler of arguments that `take_sampler_options` has seen."""
    from txl_tf import samplers

    temperature = arguments.temperature
    kinds: dict[str, Callable[[], Sampler]] = {
        "greedy": samplers.GreedySampler,
        "random": lambda: samplers.RandomSampler(temperature),
        "top_k": lambda: samplers.TopKSampler(arguments.k, temperature),
        "top_p": lambda: samplers.TopPSampler(arguments.p, temperature),
        "min_p": lambda: samplers.MinPSampler(arguments.min_p, temperature),
    }
    return kinds[arguments.sampler]()
