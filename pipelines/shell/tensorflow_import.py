"""The import of TensorFlow, quiet and quick, and what a process prepares before it."""

import contextlib
import ctypes
import functools
import gc
import importlib
import logging
import os
import sys
import warnings
from types import ModuleType

from txl_tf.imports import is_on_jax

_QUIET = "3"
# `absl::SetMinLogLevel` in TensorFlow 2.20 and 2.21, which offer no other way.
_SET_MIN_LOG_LEVEL = tuple(
    f"_ZN4absl12lts_{version}14SetMinLogLevelENS0_18LogSeverityAtLeastE"
    for version in (20250127, 20250814)
)
_FATAL = 3
# For converters, plots and wrappers that no job uses. They take a third of the time.
_NOT_NEEDED = ("jax", "matplotlib", "sklearn")


def prepare_process() -> None:
    """Silences logs and warnings of libraries, before TensorFlow is imported.

    `TF_CPP_MIN_LOG_LEVEL` shows the log again, `-W` the warnings.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Otherwise the next file opened gets the descriptor, and with it printed text.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A test or a notebook may have replaced the stream by another type.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # Importing TensorFlow creates a million objects, and a search for garbage takes 0.5 of 4 s.
    gc.set_threshold(200_000)
    if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = _QUIET
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
        if not sys.warnoptions:
            warnings.simplefilter("ignore")


def load_tensorflow(job: str) -> None:
    """Prints the first line of a job, and imports TensorFlow, which takes seconds.

    Whatever `TF_CPP_MIN_LOG_LEVEL` says, TensorFlow 2.21 writes log lines during its import, and
    2.20 at its first program of XLA. Beside JAX it takes no GPU.
    """
    if "tensorflow" not in sys.modules:
        print(f"txl {job}: loading TensorFlow", file=sys.stderr, flush=True)
        _import_quietly()
    if is_on_jax():
        # It only reads data and writes events.
        importlib.import_module("tensorflow").config.set_visible_devices([], "GPU")
        # It has looked for a TPU during its import; JAX does it now.
        os.environ.pop("TPU_LOAD_LIBRARY", None)


def _import_quietly() -> None:
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") != _QUIET:
        import_tensorflow()
        return
    errors, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        tensorflow = import_tensorflow()
    finally:
        os.dup2(errors, 2)
        os.close(errors)
        os.close(nothing)
    with contextlib.suppress(OSError):
        folder = os.path.dirname(tensorflow.__file__ or "")
        library = ctypes.CDLL(os.path.join(folder, "libtensorflow_framework.so.2"))
        for name in filter(functools.partial(hasattr, library), _SET_MIN_LOG_LEVEL):
            getattr(library, name)(_FATAL)


def import_tensorflow() -> ModuleType:
    """Imports TensorFlow without packages that it and Keras import if they are there."""
    backend = os.environ.get("KERAS_BACKEND")
    absent = [name for name in _NOT_NEEDED if name not in sys.modules and name != backend]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        return importlib.import_module("tensorflow")
    finally:
        for name in absent:
            del sys.modules[name]
