"""Names that are imported on first use, and optional packages with the extra that has them."""

import ast
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txl_tf.errors import UsageError


def lazy_names(
    package: str, file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Makes `__all__`, `__getattr__` and `__dir__` of a package that imports names on first use.

    The names stand once, as imports in the stub `__init__.pyi` beside the package,
    where editors and type checkers read them too.

    Args:
        package: str. Name of the package.
        file: str. Its `__file__`.

    Returns:
        The list `__all__` and the functions `__getattr__` and `__dir__`.
    """
    modules = _names_of_stub(Path(file).with_suffix(".pyi"), package)

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(modules[name])
        return module if modules[name] == f"{package}.{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted([*modules, *vars(importlib.import_module(package))])

    return sorted(modules), get, names


def _names_of_stub(path: Path, package: str) -> dict[str, str]:
    """Returns the full name of the module of each name that a stub imports."""
    found = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            module = str(statement.module)
            for name in (alias.name for alias in statement.names):
                # What a package imports from itself are its subpackages.
                found[name] = f"{package}.{name}" if module == package else module
    return found


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
