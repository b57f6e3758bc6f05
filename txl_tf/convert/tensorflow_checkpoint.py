"""Reader of a TensorFlow checkpoint that may be damaged.

A checkpoint is a group of files with one prefix: an index, which is a table of the variables, and
one or more files of data. The sizes in the index are checked before TensorFlow uses them.
"""

import math
import os
import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from txl_tf.errors import DataDamagedError, InputMissingError, errors_as
from txl_tf.storage.files import file_bytes, list_folder, read_file
from txl_tf.storage.listed_files import listed_file

_INDEX = ".index"
# The index of a model with a hundred thousand variables is smaller.
_MAX_INDEX_BYTES = 16 << 20
# The last bytes of a table: the places of two blocks, padded, then a magic number.
_FOOTER_BYTES = 48
_HANDLE_BYTES = 40
_MAGIC = 0xDB4775248B80FB57
# Type and checksum after each block.
_TRAILER_BYTES = 5


def find_prefix(source: str | Path) -> str:
    """Finds the prefix of a checkpoint's files from the prefix, its index file or its folder.

    Raises InputMissingError unless there is exactly one checkpoint.
    """
    path = Path(source)
    if path.is_dir():
        index_files = list(path.glob(f"*{_INDEX}"))
    else:
        index_file = path.with_name(path.name.removesuffix(_INDEX) + _INDEX)
        index_files = [index_file] if index_file.is_file() else []
    if len(index_files) != 1:
        raise InputMissingError(
            f"There must be exactly one checkpoint, but there are {len(index_files)}.",
            where=str(path),
            remedy="Give the path of a file that ends in .index, without this ending.",
        )
    return str(index_files[0].with_suffix(""))


def read_checkpoint(prefix: str, ignored: re.Pattern[str]) -> dict[str, np.ndarray]:
    """Reads the variables of a checkpoint, except those with `ignored` names.

    Raises DataDamagedError if the checkpoint is not whole.
    """
    folder, name = os.path.split(prefix)
    with errors_as(
        DataDamagedError,
        (OSError, LookupError, RuntimeError, TypeError, ValueError, tf.errors.OpError),
        "The checkpoint is damaged",
        prefix,
        "Restore it from a copy.",
    ):
        path = listed_file(folder, f"{name}{_INDEX}", listed_in=prefix)
        _check_footer(read_file(path, max_bytes=_MAX_INDEX_BYTES))
        files = [file for file in list_folder(folder) if file.startswith(f"{name}.data-")]
        num_bytes = sum(file_bytes(listed_file(folder, file, listed_in=path)) for file in files)
        # `tf.train.load_checkpoint` would first look for a folder with this name.
        reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        tensor_bytes = sum(math.prod(shapes[key]) * max(dtypes[key].size or 1, 1) for key in shapes)
        if tensor_bytes > num_bytes:
            raise ValueError(
                f"its tensors need {tensor_bytes:,} bytes, but its files have {num_bytes:,}"
            )
        names = sorted(name for name in shapes if not ignored.fullmatch(name))
        return {name: np.asarray(reader.get_tensor(name)) for name in names}


def _check_footer(content: bytes) -> None:
    """Raises ValueError unless the footer of a table is valid and refers to places in the file."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or int.from_bytes(footer[_HANDLE_BYTES:], "little") != _MAGIC:
        raise ValueError("the last bytes of its .index file are not valid")
    # A number has 7 bits in each byte, the lowest first; its last byte is below 0x80.
    encoded = re.findall(rb"[\x80-\xff]*[\x00-\x7f]", footer[:_HANDLE_BYTES])
    numbers = [sum((byte & 0x7F) << 7 * i for i, byte in enumerate(each)) for each in encoded]
    for start, size in (numbers[:2], numbers[2:4]):
        if start + size + _TRAILER_BYTES > len(content):
            raise ValueError("its .index file refers to bytes after the end of the file")
