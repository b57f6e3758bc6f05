"""The arrays of a checkpoint: checked, hashed, written and read.

The hash is of the values in memory, not of the file. So a checkpoint is written
and verified without reading anything twice, which counts where the file is far
away, and what is verified is what the run goes on with.
"""

import concurrent.futures
import hashlib
import os
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.distribution.remote_hosts import this_host
from txl_tf.errors import DataDamagedError, NonFiniteError, StorageError
from txl_tf.storage.array_files import StoredTensor, checked_tensor_bundle
from txl_tf.storage.files import file_bytes, first_line
from txl_tf.storage.store_client import is_store_failure
from txl_tf.training.checkpoint_manifest import unreadable

_REMEDY = "Restore it from a copy."
# Small enough to stay in a core's cache between the check and the hash.
_BLOCK_BYTES = 1 << 20
# More would take cores from the input pipeline.
_MAX_THREADS = 8
# A float is infinite or not a number when all bits of its exponent are set.
_EXPONENT_BITS = {
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
    "float32": (np.uint32, 0x7F800000),
    "float64": (np.uint64, 0x7FF0000000000000),
}
# A store that is far away may not answer; the checkpoint is not damaged by that.
_NOT_FOUND = "Failed to find any matching files"
_OUT_OF_REACH = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnauthenticatedError,
)


def describe_arrays(step: int, arrays: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Describes arrays for a manifest, and refuses what is not finite.

    Args:
        step: int. Steps done, for the error.
        arrays: dict of name to array, of any numeric dtype.

    Returns:
        Dict of name to `dtype`, `shape` and `sha256` of the values in memory
        order.

    Raises:
        NonFiniteError: If a floating array holds an infinity or NaN.
    """
    names = sorted(arrays)
    with concurrent.futures.ThreadPoolExecutor(_num_threads()) as executor:
        results = executor.map(lambda name: _describe(arrays[name]), names)
        descriptions = dict(zip(names, results, strict=True))
    damaged = [name for name in names if not descriptions[name].pop("is_finite")]
    if damaged:
        more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
        raise NonFiniteError(
            f"The state of step {step} is not finite and is not saved.",
            where=f"{damaged[0]}{more}",
            remedy="Start again from the last checkpoint, which is finite.",
        )
    return descriptions


def write_arrays(prefix: str, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays in TensorFlow's checkpoint format under plain names.

    Args:
        prefix: str. Path that the names of the files begin with.
        arrays: dict of name to array.

    Raises:
        OSError: If they cannot be written.
        tf.errors.OpError: If they cannot be written.
    """
    names = sorted(arrays)
    # Not on an accelerator, nor on another host, where TensorFlow would put them by itself.
    with this_host():
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.convert_to_tensor(arrays[name]) for name in names],
        )


def read_arrays(prefix: str, descriptions: dict[str, Any]) -> dict[str, np.ndarray]:
    """Reads the arrays of a checkpoint and verifies each.

    Args:
        prefix: str. Path that the names of the files begin with.
        descriptions: dict of name to what `describe_arrays` returned. In the
            first format it was the shape alone, beside a hash of the file.

    Returns:
        Dict of name to array.

    Raises:
        DataDamagedError: If the arrays are not those that were described.
        StorageError: If the storage does not answer.
    """
    try:
        stored = checked_tensor_bundle(prefix, remedy=_REMEDY)
    except OSError as error:
        raise unreadable(error, f"{prefix}.index") from error
    _check_descriptions(stored, descriptions, prefix)
    try:
        # `tf.train.load_checkpoint` would look for a folder of its own kind first.
        reader = tf.compat.v1.train.NewCheckpointReader(prefix)
        with concurrent.futures.ThreadPoolExecutor(_num_threads()) as executor:
            arrays, checks = {}, {}
            for name in sorted(stored):
                arrays[name] = np.asarray(reader.get_tensor(name))
                checks[name] = executor.submit(_matches, arrays[name], descriptions[name])
    except (OSError, tf.errors.OpError, RuntimeError, ValueError) as error:
        raise reading_failed(error, prefix) from error
    for name, check in checks.items():
        if not check.result():
            raise _damaged(f"the array `{name}` is not what was written", _data_file(prefix))
    return arrays


def reading_failed(
    error: Exception, prefix: str, remedy: str = _REMEDY
) -> DataDamagedError | StorageError:
    """Tells a store that does not answer from files that are damaged.

    Args:
        error: exception. What TensorFlow's reader of checkpoints raised.
        prefix: str. Path that the names of the files begin with.
        remedy: str. What to do about damage.

    Returns:
        The error to raise.
    """
    what = f"the arrays cannot be read: {first_line(error)}"
    out_of_reach = StorageError(
        what, where=_data_file(prefix), remedy="Start again when the storage answers."
    )
    if isinstance(error, _OUT_OF_REACH) or is_store_failure(error):
        return out_of_reach
    damage = DataDamagedError(what, where=_data_file(prefix), remedy=remedy)
    try:
        # The reader looks for the files by a pattern, and finds none where that fails.
        for path in (f"{prefix}.index", _data_file(prefix)):
            file_bytes(path)
    except FileNotFoundError:
        return damage
    except OSError:
        return out_of_reach
    return out_of_reach if _NOT_FOUND in str(error) else damage


def _check_descriptions(
    stored: dict[str, StoredTensor], descriptions: dict[str, Any], prefix: str
) -> None:
    """Compares stored with described arrays before any array is read."""
    if stored.keys() != descriptions.keys():
        differing = ascii(min(stored.keys() ^ descriptions.keys()))[1:-1]
        raise _damaged(f"the array `{differing[:200]}` is on one side only", f"{prefix}.index")
    for name, tensor in stored.items():
        description = descriptions[name]
        if isinstance(description, list):
            is_same = [*tensor.shape] == description
        else:
            is_same = (
                isinstance(description, dict)
                and description.get("dtype") == tensor.dtype
                and description.get("shape") == [*tensor.shape]
            )
        if not is_same:
            what = f"the array `{name}` of {tensor.dtype} {[*tensor.shape]}"
            raise _damaged(f"{what} is not what was written", _data_file(prefix))


def _describe(array: np.ndarray) -> dict[str, Any]:
    array = np.asarray(array)
    # A view would share the memory, but there is none of an array without axes.
    flat = np.ascontiguousarray(array).reshape(-1)
    digest = hashlib.sha256()
    is_finite = True
    unsigned, mask = _EXPONENT_BITS.get(array.dtype.name, (np.uint8, 0))
    words = flat.view(unsigned) if mask else flat.view(np.uint8)
    exponents = np.empty(_BLOCK_BYTES // words.itemsize, words.dtype)
    for start in range(0, words.size, exponents.size):
        block = words[start : start + exponents.size]
        digest.update(block.view(np.uint8).data)
        if mask:
            found = np.bitwise_and(block, unsigned(mask), out=exponents[: block.size])
            is_finite = is_finite and bool(found.max() != mask)
    return {
        "dtype": array.dtype.name,
        "shape": [*array.shape],
        "sha256": digest.hexdigest(),
        "is_finite": is_finite,
    }


def _matches(array: np.ndarray, description: Any) -> bool:
    if isinstance(description, list):
        return [*array.shape] == description
    found = _describe(array)
    # Also where it was finite when it was hashed: nobody else writes such a file.
    return found.pop("is_finite") and found == description


def _num_threads() -> int:
    return min(_MAX_THREADS, os.cpu_count() or 1)


def _data_file(prefix: str) -> str:
    return f"{prefix}.data-00000-of-00001"


def _damaged(what: str, path: str) -> DataDamagedError:
    return DataDamagedError(what, where=path, remedy=_REMEDY)
