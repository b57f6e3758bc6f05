"""Import of TensorFlow by a job, without packages and garbage collections that it does not need.

TensorFlow and Keras import optional packages wherever they are installed, which takes
nearly as long as what they are made of. And an import makes a million objects, through
which Python's collector looks again and again, though none of them is garbage.
"""

import contextlib
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

_FIRST = "tensorflow"
# For converters, wrappers and pictures that no job uses. What a job does use of a package here it
# imports itself, when TensorFlow is there.
_UNUSED = frozenset({"jax", "matplotlib", "pandas", "sklearn"})


def import_tensorflow_quickly() -> None:
    """Makes the first import of TensorFlow in this process a quick one.

    While it lasts, the packages that only it would use appear not to be installed,
    and the garbage collector rests. What was imported by then it never looks
    through again.
    """
    if _FIRST not in sys.modules and not any(isinstance(x, _Finder) for x in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finder that stands before all others until TensorFlow has been imported."""

    def __init__(self) -> None:
        self._is_importing = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in _UNUSED and self._is_importing:
            raise ModuleNotFoundError(f"{name} is not used by jobs.", name=name)
        if name != _FIRST or self._is_importing:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Refuses unused packages, and stops the collector, while the `with` block runs."""
        was_enabled = gc.isenabled()
        gc.disable()
        self._is_importing = True
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            self._is_importing = False
            gc.freeze()
            if was_enabled:
                gc.enable()


class _Loader(importlib.abc.Loader):
    """Loader of TensorFlow by its own loader."""

    def __init__(self, loader: importlib.abc.Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # TensorFlow looks for its files by the loader of its module.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._finder.importing():
            self._loader.exec_module(module)
