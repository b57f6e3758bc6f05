"""Weights and vocabularies of other implementations, in and out.

The public names are imported when they are first used, so that reading a
vocabulary does not start TensorFlow.
"""

from typing import TYPE_CHECKING

from txl_tf.imports import lazy_names

if TYPE_CHECKING:
    from txl_tf.convert.hugging_face import load_hugging_face, save_hugging_face
    from txl_tf.convert.official_tensorflow import load_official_tensorflow
    from txl_tf.convert.python2_vocabulary import (
        Python2Vocabulary,
        read_python2_vocabulary,
        write_symbols,
    )
    from txl_tf.convert.pytorch import load_nvidia_pytorch, load_official_pytorch

_MODULES = {
    "Python2Vocabulary": "txl_tf.convert.python2_vocabulary",
    "load_hugging_face": "txl_tf.convert.hugging_face",
    "load_nvidia_pytorch": "txl_tf.convert.pytorch",
    "load_official_pytorch": "txl_tf.convert.pytorch",
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

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
