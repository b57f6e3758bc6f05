"""Versions of packages, as far as comparing releases needs."""

import re

_RELEASE = re.compile(r"\d+(\.\d+)*")


def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, without what marks candidates and builds.

    Args:
        version: str. Such as `2.20.0` or `2.13.0+cpu`.

    Returns:
        Tuple of int without zeros at its end, so that 2.0 equals 2.0.0; empty
        for something that is no version.
    """
    matched = _RELEASE.match(version)
    numbers = [int(number) for number in matched[0].split(".")] if matched else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def canonical(name: str) -> str:
    """The name of a package as registries compare it: `ml_dtypes` is `ml-dtypes`."""
    return re.sub(r"[-_.]+", "-", name).lower()
