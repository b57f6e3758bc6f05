"""Lazy imports of public names and Keras classes, and checks of optional packages."""

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from txl_tf.errors import BackendError, UsageError

_ON_TENSORFLOW = ("txl_tf.export", "txl_tf.harness")
# Layers and models also run on other Keras backends.
_ON_JAX_TOO = ("txl_tf.causal_lm", "txl_tf.generation")
# Classes registered with Keras besides the public layers.
_KERAS_CLASSES = {
    "txl_tf.models.headed": ("TransformerXLWithHead",),
    "txl_tf.models.recurrent": ("LSTMLanguageModel", "QRNNLanguageModel"),
    "txl_tf.models.stateful": ("StatefulTransformerXL",),
    "txl_tf.models.transformer_xl": ("TransformerXL",),
    "txl_tf.training.optimizers": ("Lamb", "Muon", "WarmupSchedule"),
}


class _LazyPackage:
    """Package that is imported on first use, which raises UsageError if it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(importlib.import_module(self._name), name)
        except ModuleNotFoundError as error:
            if error.name != self._name:
                raise
            raise UsageError(
                f"Remote folders, exports and some tokenizers need {self._name}.",
                remedy=f"Install the missing package {self._name}.",
            ) from error


if TYPE_CHECKING:
    import jax as jax
    import tensorflow as tensorflow
    import tensorflow_text as tensorflow_text
else:
    jax, tensorflow, tensorflow_text = map(_LazyPackage, ("jax", "tensorflow", "tensorflow_text"))


def lazy_names(
    package: str, file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Makes `__all__`, `__getattr__` and `__dir__` of a package that imports names on first use.

    `file` is the `__init__.py` of the package. The stub `__init__.pyi` beside it lists the names as
    imports, which editors and type checkers read too.
    """
    modules = _names_of_stub(Path(file).with_suffix(".pyi"), package)

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name].startswith(_ON_TENSORFLOW):
            require_tensorflow_backend()
        elif modules[name].startswith(_ON_JAX_TOO):
            require_tensorflow_backend("jax")
        module = importlib.import_module(modules[name])
        return module if modules[name] == f"{package}.{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted([*modules, *vars(importlib.import_module(package))])

    return sorted(modules), get, names


def _names_of_stub(path: Path, package: str) -> dict[str, str]:
    """Returns the full name of the module of each name that a stub imports."""
    modules = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom):
            module = str(statement.module)
            for name in (alias.name for alias in statement.names):
                # The names that a package imports from itself are its subpackages.
                modules[name] = f"{package}.{name}" if module == package else module
    return modules


def register_with_keras() -> None:
    """Registers the classes of this package with Keras, which loads models by these names.

    A class is imported when Keras first uses it. If Keras is not imported yet, the registration
    waits for that import, because importing Keras takes seconds.
    """
    if "keras" in sys.modules:
        _register_classes()
    else:
        sys.meta_path.insert(0, _KerasFinder())


def _register_classes() -> None:
    classes = _names_of_stub(Path(__file__).parent / "layers" / "__init__.py", "txl_tf.layers")
    classes |= {name: module for module, names in _KERAS_CLASSES.items() for name in names}
    registry = sys.modules["keras"].saving.get_custom_objects()
    for name, module in classes.items():
        registry.setdefault(f"txl_tf>{name}", _ClassOnFirstUse(module, name))


class _ClassOnFirstUse:
    """Registry entry that imports its class on first use.

    The import registers the class itself in the place of the entry.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def from_config(self, config: dict[str, Any]) -> Any:
        return getattr(importlib.import_module(self._module), self._name).from_config(config)


class _KerasFinder(importlib.abc.MetaPathFinder):
    """Finder of Python's import system that registers the classes after the import of Keras.

    It stands before the other finders and lets them find Keras. Then it replaces the function that
    executes the module, so that the classes are registered right after. A caller that only looks
    for Keras, without importing it, registers nothing and may do so any number of times.
    """

    def find_spec(self, name: str, *arguments: Any) -> importlib.machinery.ModuleSpec | None:
        if name != "keras":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (each.find_spec(name, *arguments) for each in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                _register_classes()

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def require_tensorflow_backend(*others: str) -> None:
    """Raises BackendError unless Keras runs on TensorFlow, or on one of the `others`."""
    backend, where = os.environ.get("KERAS_BACKEND"), "KERAS_BACKEND in the environment"
    if not backend:
        where = "keras.json in ~/.keras or $KERAS_HOME"
        try:
            backend = importlib.import_module("keras").config.backend()
        except ModuleNotFoundError as error:
            backend = error.name
    if backend not in ("tensorflow", *others):
        needs = " or ".join(("tensorflow", *others))
        raise BackendError(
            f"The backend of Keras is {backend}; this needs {needs}.",
            where=where,
            remedy="Set KERAS_BACKEND=tensorflow before Keras is imported.",
        )


def is_on_jax() -> bool:
    """True if JAX is the backend of Keras, or will be by the environment."""
    if "keras" in sys.modules:
        return bool(sys.modules["keras"].config.backend() == "jax")
    return os.environ.get("KERAS_BACKEND") == "jax"


def require_backend_packages() -> None:
    """Raises UsageError if JAX is the backend of Keras, but not installed."""
    if is_on_jax():
        where = "KERAS_BACKEND or --backend"
        extra = "jax-cuda" if os.path.exists("/dev/nvidiactl") else "jax-tpu"
        require_extra(extra, "jax", purpose="The backend jax", where=where)


def require_extra(extra: str, *modules: str, purpose: str, where: str = "") -> None:
    """Raises UsageError if a package of an extra is missing, without importing any.

    `purpose` is the subject of the error's sentence, and `where` names the file or argument.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(
            f"{purpose} needs {' and '.join(missing)}, which {verb} not installed.",
            where=where,
            remedy=f"Install the extra in the checkout: pip install -e '.[{extra}]'",
        )
