"""The public names; `__init__.py` reads them from here and imports each on first use."""

from txl_tf.convert.hugging_face_folder import save_hugging_face as save_hugging_face
from txl_tf.convert.official_tensorflow import load_official_tensorflow as load_official_tensorflow
from txl_tf.convert.python2_vocabulary import (
    Python2Vocabulary as Python2Vocabulary,
    read_python2_vocabulary as read_python2_vocabulary,
)
from txl_tf.convert.pytorch import (
    load_hugging_face as load_hugging_face,
    load_nvidia_pytorch as load_nvidia_pytorch,
    load_official_pytorch as load_official_pytorch,
)
