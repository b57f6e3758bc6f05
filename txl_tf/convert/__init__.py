"""Weights and vocabularies of other implementations, in and out.

The public names are imported when they are first used, so that reading a
vocabulary does not start TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txl_tf.convert.hugging_face import load_hugging_face, save_hugging_face
    from txl_tf.convert.official_pytorch import load_nvidia_pytorch, load_official_pytorch
    from txl_tf.convert.official_tensorflow import load_official_tensorflow
    from txl_tf.convert.python2_vocabulary import (
        Python2Vocabulary,
        read_python2_vocabulary,
        write_symbols,
    )

_MODULES = {
    "Python2Vocabulary": "txl_tf.convert.python2_vocabulary",
    "load_hugging_face": "txl_tf.convert.hugging_face",
    "load_nvidia_pytorch": "txl_tf.convert.official_pytorch",
    "load_official_pytorch": "txl_tf.convert.official_pytorch",
    "load_official_tensorflow": "txl_tf.convert.official_tensorflow",
    "read_python2_vocabulary": "txl_tf.convert.python2_vocabulary",
    "save_hugging_face": "txl_tf.convert.hugging_face",
    "write_symbols": "txl_tf.convert.python2_vocabulary",
}

__all__ = [
    "Python2Vocabulary",
    "load_hugging_face",
    "load_nvidia_pytorch",
    "load_official_pytorch",
    "load_official_tensorflow",
    "read_python2_vocabulary",
    "save_hugging_face",
    "write_symbols",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module `txl_tf.convert` has no attribute `{name}`")


def __dir__() -> list[str]:
    return sorted(__all__)
