"""NumPy archives (`.npz`) that may come from strangers, read with limits."""

import warnings
import zipfile
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Weights and ids hardly compress. The limits leave room for arrays of zeros.
_MAX_RATIO = 64
_ALWAYS_ALLOWED_BYTES = 16 << 20


def read_array_archive(file: IO[bytes]) -> "dict[str, np.ndarray]":
    """Reads all arrays of a NumPy archive in a seekable file.

    All arrays together may have 64 times the bytes of the file, or 16 MiB if this is more. Raises
    ValueError for an archive that unpacks to more, is invalid, or has an array of objects.
    """
    import numpy as np

    max_bytes = max(_MAX_RATIO * file.seek(0, 2), _ALWAYS_ALLOWED_BYTES)
    try:
        with zipfile.ZipFile(file) as archive:
            total = sum(member.file_size for member in archive.infolist())
        if total > max_bytes:
            raise ValueError(f"it unpacks to {total:,} bytes; at most {max_bytes:,} are read")
        file.seek(0)
        with warnings.catch_warnings(), np.load(file, allow_pickle=False) as arrays:
            # NumPy reads headers that Python 2 wrote, but warns about them.
            warnings.simplefilter("ignore")
            contents = dict(arrays)
        for name, array in contents.items():
            if not isinstance(array, np.ndarray) or array.dtype.names:
                raise ValueError(f"{ascii(name)[:200]} is not an array of numbers")
        return contents
    except Exception as error:  # `zipfile` and NumPy raise errors of many classes
        reason = str(error) or type(error).__name__
        raise ValueError(f"the archive cannot be read: {reason}") from error
