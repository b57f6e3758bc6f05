"""Files of arrays from strangers: TensorFlow checkpoints and NumPy archives.

TensorFlow verifies the checksums of index blocks and tensors. But it allocates the memory that the
end of an index and the shapes ask for, so both are compared with the files first.
"""

import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from typing import IO, Any

import numpy as np

from txl_tf.errors import DataDamagedError
from txl_tf.storage.files import file_bytes, first_line, read_file
from txl_tf.storage.untrusted_files import listed_file, reading_failed

# More than the index of a model with a hundred thousand variables.
_MAX_INDEX_BYTES = 16 << 20
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_MAGIC = 0xDB4775248B80FB57


def open_tensor_bundle(
    prefix: str, *, remedy: str
) -> tuple[Any, dict[str, tuple[str, tuple[int, ...]]]]:
    """Opens a checkpoint by the prefix of its paths, after comparing its index with the data files.

    Returns TensorFlow's reader, and dtype and shape by name. Raises DataDamagedError if the index
    does not fit the files.
    """
    import tensorflow as tf

    folder, name = os.path.split(prefix)
    path = listed_file(folder, f"{name}.index", listed_in=f"{prefix}.*", remedy=remedy)
    content = read_file(path, max_bytes=_MAX_INDEX_BYTES)
    try:
        _check_footer(content)
    except (ValueError, struct.error) as error:
        what = f"The index of the tensors is damaged: {first_line(error)}"
        raise DataDamagedError(what, where=path, remedy=remedy) from error
    try:
        # `tf.train.load_checkpoint` would look for a folder of its own kind first.
        reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        dtypes = reader.get_variable_to_dtype_map()
        tensors = {
            key: (dtypes[key].name, tuple(shape))
            for key, shape in reader.get_variable_to_shape_map().items()
        }
        needed = sum(
            math.prod(shape) * max(tf.as_dtype(dtype).size or 1, 1)
            for dtype, shape in tensors.values()
        )
        found = _data_bytes(folder, name)
    except (ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
        raise reading_failed(error, prefix, remedy) from error
    if needed > found:
        what = f"The tensors take {needed:,} bytes; the data have {found:,}."
        raise DataDamagedError(what, where=path, remedy=remedy)
    return reader, tensors


def _check_footer(content: bytes) -> None:
    """Checks the positions and sizes of two blocks in a table's footer, which has no checksum."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("it does not end as a table does")
    numbers = []
    value = shift = 0
    for byte in footer[:40]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    for start, size in (numbers[:2], numbers[2:4]):
        if start + size + _TRAILER_BYTES > len(content):
            raise ValueError("a block is not in the file")


def _data_bytes(folder: str, name: str) -> int:
    """Returns the size of all data files of a checkpoint, which must be regular files."""
    import tensorflow as tf

    paths = tf.io.gfile.glob(os.path.join(folder, f"{name}.data-*"))
    files = [os.path.basename(path) for path in paths]
    listed = [listed_file(folder, file, listed_in=f"{name}.index") for file in files]
    return sum(file_bytes(path) for path in listed)


# Weights and ids hardly compress; this leaves room for arrays of zeros.
_MAX_RATIO = 64
_ALWAYS_ALLOWED_BYTES = 16 << 20
_DAMAGES = (
    *(AttributeError, EOFError, LookupError, MemoryError, NotImplementedError, OSError),
    *(OverflowError, RecursionError, RuntimeError, SyntaxError, tokenize.TokenError, TypeError),
    *(zipfile.BadZipFile, zlib.error),
)


def read_array_archive(file: IO[bytes], *, max_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Reads all arrays of a NumPy archive, in a seekable file, unless it unpacks to too much.

    `max_bytes` limits all arrays together and defaults to 64 times the size of the file, at least
    16 MiB. Raises ValueError if the archive is too large, invalid, or has arrays of objects.
    """
    num_bytes = file.seek(0, 2)
    if max_bytes is None:
        max_bytes = max(_MAX_RATIO * num_bytes, _ALWAYS_ALLOWED_BYTES)
    try:
        with zipfile.ZipFile(file) as archive:
            total = sum(member.file_size for member in archive.infolist())
        if total > max_bytes:
            what = f"it unpacks to {total:,} bytes; at most {max_bytes:,} are read"
            raise ValueError(what)
        file.seek(0)
        with warnings.catch_warnings(), np.load(file, allow_pickle=False) as arrays:
            # NumPy warns about headers of Python 2, but reads them.
            warnings.simplefilter("ignore")
            found = dict(arrays)
        for name, array in found.items():
            if not isinstance(array, np.ndarray) or array.dtype.names:
                raise ValueError(f"{ascii(name)[:200]} is no array")
        return found
    except (ValueError, *_DAMAGES) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"the archive cannot be read: {reason}") from error
