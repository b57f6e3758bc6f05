"""Holds numbers of a command line against what they can be."""

import argparse
from collections.abc import Mapping

from txl_tf.config.shown_value import shown_value
from txl_tf.errors import UsageError

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
    """The error of a number that is out of its range.

    Args:
        option: str. Such as `--rows`.
        value: the number.
        least: the least it can be.
        most: the largest it can be.

    Returns:
        A `UsageError`.
    """
    return UsageError(
        "The value is out of range.",
        where=f"{option} {shown_value(value)}",
        remedy=f"Give {least} to {most}.",
    )


def flag_of(name: str) -> str:
    """The option of an argument: `--num-tokens` for `num_tokens`."""
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
