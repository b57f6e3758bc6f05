"""Names that are imported on first use, and optional packages with the extra that has them."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from txl_tf.errors import UsageError


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes `__getattr__` and `__dir__` of a package that imports its names on first use.

    Args:
        package: str. Name of the package.
        modules: mapping from each public name to the full name of the module
            that defines it. A subpackage stands for itself.

    Returns:
        The functions `__getattr__` and `__dir__`.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        return module if modules[name] == f"{package}.{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted([*modules, *vars(importlib.import_module(package))])

    return get, names


def require_extra(extra: str, *modules: str, purpose: str, where: str = "") -> None:
    """Checks that the packages of an extra are installed, without importing them.

    Args:
        extra: str. Name of the extra in pyproject.toml.
        *modules: str. Top-level names that must be importable.
        purpose: str. The work that needs them, at the beginning of a sentence.
        where: str. The file or argument that asks for that work.

    Raises:
        UsageError: If one of them is not installed.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"{purpose} needs {' and '.join(missing)}, which {verb} not installed.",
            where=where,
            remedy=f"Install the extra in the checkout: pip install -e '.[{extra}]'",
        )
