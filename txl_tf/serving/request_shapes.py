"""Holds what a request says of itself against the signature, before it is expanded.

Both interfaces go through here: names, types, axes, sizes and their product are
checked while a tensor is still text or a message.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.serving.request_error import RequestError
from txl_tf.serving.status_code import StatusCode

MAX_AXES = 8
"""More axes than any tensor of a signature has."""
MAX_REQUEST_BYTES = 256 << 20
"""All tensors of a request together, expanded."""
_STRING_BYTES = 24
_MAX_NAMES_SHOWN = 5


def require_names(names: Collection[str], signature: meta_graph_pb2.SignatureDef) -> None:
    """Refuses a request without exactly the inputs of the signature.

    Args:
        names: the names that were sent.
        signature: `SignatureDef`.

    Raises:
        RequestError: INVALID_ARGUMENT with the names.
    """
    missing = sorted(set(signature.inputs) - set(names))
    surplus = sorted(set(names) - set(signature.inputs))
    if missing or surplus:
        shown = [name[:40] for name in surplus[:_MAX_NAMES_SHOWN]]
        raise invalid(
            f"The inputs are not those of the signature: missing {missing}, unexpected {shown}."
        )


def require_shapes(
    shapes: Mapping[str, Sequence[int]],
    tensors: Mapping[str, meta_graph_pb2.TensorInfo],
    string_bytes: Mapping[str, int],
) -> None:
    """Refuses shapes that are not the signature's, or stand for too much.

    Rows that bring nothing may say so by sizes of 0 in all axes but the first.
    Where the signature leaves the first axis open, it is rows, and all inputs have
    as many of them.

    Args:
        shapes: dict of name to the shape as it was sent.
        tensors: map of name to `TensorInfo` of the signature.
        string_bytes: dict of name to the bytes of all strings in it.

    Raises:
        RequestError: INVALID_ARGUMENT with the two shapes, or the bytes.
    """
    total, rows = 0, {}
    for name, sizes in shapes.items():
        _require_shape(name, sizes, tensors[name])
        axes = tensors[name].tensor_shape.dim
        if axes and axes[0].size < 0:
            rows[name] = sizes[0]
        # Empty axes hide nothing: shapes are multiplied in 64 bits elsewhere.
        count = math.prod(max(size, 1) for size in sizes)
        total += count * element_bytes(tensors[name]) + string_bytes.get(name, 0)
        if total > MAX_REQUEST_BYTES:
            raise invalid(
                f"{name} has the shape {list(sizes)}. With it, the tensors of the request "
                f"would take {total} bytes; {MAX_REQUEST_BYTES} is the limit."
            )
    if len(set(rows.values())) > 1:
        fewest, most = min(rows, key=rows.__getitem__), max(rows, key=rows.__getitem__)
        raise invalid(
            f"{most} has {rows[most]} rows, and {fewest} has {rows[fewest]}; "
            "all inputs must have as many."
        )


def element_bytes(tensor: meta_graph_pb2.TensorInfo) -> int:
    """The bytes of an element; of a string, those that it takes if it is empty.

    Args:
        tensor: `TensorInfo`.

    Returns:
        The number of bytes.
    """
    dtype = tf.as_dtype(tensor.dtype)
    return _STRING_BYTES if dtype == tf.string else max(dtype.size, 1)


def type_name(enumerated: int) -> str:
    """The name of a type by its number in messages, whatever number it is."""
    try:
        return types_pb2.DataType.Name(enumerated)
    except ValueError:
        return f"number {enumerated}"


def invalid(message: str) -> RequestError:
    """The error of a request that is wrong.

    Args:
        message: str. What is wrong with it.

    Returns:
        `RequestError` with INVALID_ARGUMENT.
    """
    return RequestError(StatusCode.INVALID_ARGUMENT, message)


def _require_shape(name: str, sizes: Sequence[int], tensor: meta_graph_pb2.TensorInfo) -> None:
    if len(sizes) > MAX_AXES:
        raise invalid(f"{name} has {len(sizes)} axes; it must have {MAX_AXES} at most.")
    if any(size < 0 for size in sizes):
        raise invalid(f"{name} has a negative size: {list(sizes)}.")
    if tensor.tensor_shape.unknown_rank:
        return
    wanted = [int(axis.size) for axis in tensor.tensor_shape.dim]
    if len(sizes) == len(wanted):
        if all(found == size or size < 0 for found, size in zip(sizes, wanted, strict=True)):
            return
        if len(sizes) > 1 and not any(sizes[1:]):
            return
    text = ", ".join("any" if size < 0 else str(size) for size in wanted)
    raise invalid(f"{name} has the shape {list(sizes)}; it must be [{text}].")
