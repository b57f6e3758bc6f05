"""Files of NumPy arrays (`.npz`) that are not trusted.

A small archive can unpack to any size, and the header of an array asks for
memory before there is data. So sizes are added up before anything is unpacked.
"""

import math
import tokenize
import warnings
import zipfile
import zlib
from typing import IO

import numpy as np

# Weights and ids hardly compress; this leaves room for arrays of zeros.
_MAX_RATIO = 64
_ALWAYS_ALLOWED_BYTES = 16 << 20
_MAX_ARRAYS = 100_000
_SUFFIX = ".npy"
_STORED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Numbers, bools, text, and the plain bytes that bfloat16 is stored as.
_KINDS = "biufcSUV"
_DAMAGES = (
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    TypeError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_array_archive(file: IO[bytes], *, max_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Reads all arrays of an archive, if it is what it says and not too large.

    Args:
        file: binary file that can be sought.
        max_bytes: optional int. What all arrays may take together. By default
            64 times the size of the file, or 16 MiB if that is more.

    Returns:
        Dict of name to array; none has objects.

    Raises:
        ValueError: If it is no such archive, or too large.
    """
    num_bytes = file.seek(0, 2)
    file.seek(0)
    if max_bytes is None:
        max_bytes = max(_MAX_RATIO * num_bytes, _ALWAYS_ALLOWED_BYTES)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_members(members, max_bytes)
            arrays = {}
            for member in members:
                name = member.filename.removesuffix(_SUFFIX)
                arrays[name] = _named(name, archive, member)
            return arrays
    except _DAMAGES as error:
        raise ValueError(f"the archive cannot be read: {_reason(error)}") from error


def _check_members(members: list[zipfile.ZipInfo], max_bytes: int) -> None:
    names = [member.filename for member in members]
    if len(members) > _MAX_ARRAYS or len(set(names)) != len(names):
        raise ValueError(f"the archive has {len(members)} arrays, or two of one name")
    for member in members:
        if not member.filename.endswith(_SUFFIX) or member.compress_type not in _STORED:
            raise ValueError(f"{ascii(member.filename)[:200]} in the archive is no array")
    total = sum(member.file_size for member in members)
    if total > max_bytes:
        raise ValueError(f"the archive unpacks to {total:,} bytes; at most {max_bytes:,} are read")


def _named(name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    try:
        return _read_array(archive, member)
    except (ValueError, *_DAMAGES) as error:
        what = f"the array {ascii(name)[:200]} cannot be read: {_reason(error)}"
        raise ValueError(what) from error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise ValueError(f"it is of format {version}")
        with warnings.catch_warnings():
            # NumPy warns of headers of Python 2, which it reads all the same.
            warnings.simplefilter("ignore")
            shape, is_fortran, dtype = readers[version](file)
        if dtype.hasobject or dtype.kind not in _KINDS or dtype.names or dtype.subdtype:
            raise ValueError(f"it is of type {ascii(str(dtype))[:100]}")
        if any(size < 0 for size in shape):
            raise ValueError(f"it has the shape {shape}")
        num_bytes = math.prod(shape) * dtype.itemsize
        left = member.file_size - file.tell()
        if num_bytes != left:
            raise ValueError(f"it takes {num_bytes:,} bytes; {left:,} are there")
        content = file.read(num_bytes)
        if len(content) != num_bytes or file.read(1):
            raise ValueError("it is cut off")
    # A copy, so that it can be written to.
    array = np.frombuffer(bytearray(content), dtype) if content else np.zeros(0, dtype)
    array = array[: math.prod(shape)]
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)
