"""Checks of the tensors in a request, before they are expanded.

Both interfaces go through here: names, types, axes, sizes and their product are
checked while a tensor is still text or a message.

A message says a shape, and holds either the bytes of all elements or a list of
values. Where the list is shorter than the shape, its last value stands for the
rest, so a few bytes can stand for any number of gigabytes.
"""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.serving.errors import RequestError, StatusCode

MAX_AXES = 8
"""More axes than any tensor of a signature has."""
MAX_REQUEST_BYTES = 256 << 20
"""All tensors of a request together, expanded."""
_STRING_BYTES = 24
_MAX_NAMES_SHOWN = 5


def require_names(names: Collection[str], signature: meta_graph_pb2.SignatureDef) -> None:
    """Refuses a request that lacks inputs without a default, or has others.

    Raises:
        RequestError: INVALID_ARGUMENT with the names.
    """
    missing = sorted(set(signature.inputs) - set(names) - set(signature.defaults))
    surplus = sorted(set(names) - set(signature.inputs))
    if missing or surplus:
        shown = [name[:40] for name in surplus[:_MAX_NAMES_SHOWN]]
        raise invalid(
            f"The inputs are not those of the signature: missing {missing}, unexpected {shown}."
        )


@contextlib.contextmanager
def inputs_explained(name: str, signature: meta_graph_pb2.SignatureDef) -> Iterator[None]:
    """Adds the inputs of a signature to the message of a request that it refuses.

    Args:
        name: str. Name of the signature.
        signature: `SignatureDef`.
    """
    try:
        yield
    except RequestError as error:
        if error.code != StatusCode.INVALID_ARGUMENT:
            raise
        message = f"{error.message} {_inputs_of(name, signature)}"
        raise RequestError(error.code, message, error.http_status) from error


def _inputs_of(name: str, signature: meta_graph_pb2.SignatureDef) -> str:
    """Describes all inputs with their types and shapes."""
    given: dict[bool, list[str]] = {True: [], False: []}
    for key in sorted(signature.inputs):
        tensor = signature.inputs[key]
        kind = type_name(tensor.dtype).removeprefix("DT_").lower()
        given[key in signature.defaults].append(f"{key} {kind} {_shape_text(tensor)}")
    optional = f"; optional: {', '.join(given[True])}" if given[True] else ""
    return f"The signature `{name}` takes {', '.join(given[False]) or 'nothing'}{optional}."


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
    """Returns the bytes of an element; of a string, those that it takes if it is empty."""
    dtype = tf.as_dtype(tensor.dtype)
    return _STRING_BYTES if dtype == tf.string else max(dtype.size, 1)


def type_name(enumerated: int) -> str:
    """Returns the name of a type by its number in messages, whatever number it is."""
    try:
        return types_pb2.DataType.Name(enumerated)
    except ValueError:
        return f"number {enumerated}"


def invalid(message: str) -> RequestError:
    """Creates the error of an invalid request: INVALID_ARGUMENT."""
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
    raise invalid(f"{name} has the shape {list(sizes)}; it must be {_shape_text(tensor)}.")


def _shape_text(tensor: meta_graph_pb2.TensorInfo) -> str:
    if tensor.tensor_shape.unknown_rank:
        return "of any shape"
    sizes = [int(axis.size) for axis in tensor.tensor_shape.dim]
    return f"[{', '.join('any' if size < 0 else str(size) for size in sizes)}]"


_FIELDS = {
    tf.as_dtype(dtype).as_datatype_enum: (field, np.dtype(dtype))
    for field, dtypes in {
        "float_val": (np.float32,),
        "double_val": (np.float64,),
        "half_val": (np.float16, ml_dtypes.bfloat16),
        "int_val": (np.int8, np.int16, np.int32, np.uint8, np.uint16),
        "int64_val": (np.int64,),
        "uint32_val": (np.uint32,),
        "uint64_val": (np.uint64,),
        "bool_val": (np.bool_,),
        "string_val": (object,),
    }.items()
    for dtype in dtypes
}
_SHAPE_FIELDS = {"dtype", "tensor_shape", "version_number"}
_CONTENT = "tensor_content"


def shapes_of_protos(
    protos: Mapping[str, tensor_pb2.TensorProto],
    tensors: Mapping[str, meta_graph_pb2.TensorInfo],
) -> dict[str, list[int]]:
    """Returns the shapes that messages stand for; all that can be known is checked.

    Args:
        protos: map of name to `TensorProto`.
        tensors: map of name to `TensorInfo` of the signature.

    Raises:
        RequestError: INVALID_ARGUMENT if a message is none of a tensor that the
            signature takes. UNIMPLEMENTED for a type that is neither numbers nor
            strings.
    """
    shapes, string_bytes = {}, {}
    for name, proto in protos.items():
        _require_form(name, proto, tensors[name])
        shapes[name] = [int(axis.size) for axis in proto.tensor_shape.dim]
        if proto.dtype == types_pb2.DT_STRING:
            string_bytes[name] = _string_bytes(proto.string_val, shapes[name])
    require_shapes(shapes, tensors, string_bytes)
    return shapes


def arrays_of_protos(
    protos: Mapping[str, tensor_pb2.TensorProto],
    tensors: Mapping[str, meta_graph_pb2.TensorInfo],
) -> dict[str, np.ndarray]:
    """Returns the arrays that messages stand for.

    Args:
        protos: map of name to `TensorProto`.
        tensors: map of name to `TensorInfo` of the signature.

    Returns:
        Dict of name to array; object arrays of bytes for strings.

    Raises:
        RequestError: As in `shapes_of_protos`, and for values not of the type.
    """
    arrays = {}
    for name, sizes in shapes_of_protos(protos, tensors).items():
        field, dtype = _FIELDS[protos[name].dtype]
        content, count = protos[name].tensor_content, math.prod(sizes)
        if content:
            array = _of_content(name, content, dtype, count)
        else:
            array = _of_values(name, getattr(protos[name], field), dtype, count)
        arrays[name] = array.reshape(sizes)
    return arrays


def _require_form(
    name: str, proto: tensor_pb2.TensorProto, tensor: meta_graph_pb2.TensorInfo
) -> None:
    if tensor.dtype not in _FIELDS:
        message = f"{name} is of type {type_name(tensor.dtype)}, which is not served here."
        raise RequestError(StatusCode.UNIMPLEMENTED, message)
    if proto.dtype != tensor.dtype:
        found, wanted = type_name(proto.dtype), type_name(tensor.dtype)
        raise invalid(f"{name} is of type {found}; it must be {wanted}.")
    if proto.version_number:
        raise invalid(f"{name} has the version number {proto.version_number}; it must be 0.")
    if proto.tensor_shape.unknown_rank:
        raise invalid(f"{name} has no shape.")
    field, dtype = _FIELDS[proto.dtype]
    allowed = {field} if dtype.kind == "O" else {field, _CONTENT}
    fields = {descriptor.name for descriptor, _ in proto.ListFields()} - _SHAPE_FIELDS
    if not fields <= allowed or len(fields) > 1:
        raise invalid(f"{name} must have its values in {field} alone. It has {sorted(fields)}.")


def _string_bytes(values: Any, sizes: list[int]) -> int:
    """Returns the bytes of all strings, the last of which stands for the rest."""
    count = math.prod(max(size, 0) for size in sizes)
    repeated = max(count - len(values), 0) * len(values[-1]) if values else 0
    return sum(map(len, values)) + repeated


def _of_content(name: str, content: bytes, dtype: np.dtype, count: int) -> np.ndarray:
    if len(content) != count * dtype.itemsize:
        expected = count * dtype.itemsize
        raise invalid(f"{name} has {len(content)} bytes of content; its shape takes {expected}.")
    if dtype == np.bool_ and np.any(np.frombuffer(content, np.uint8) > 1):
        raise invalid(f"{name} has values that are neither true nor false.")
    return np.frombuffer(content, dtype)


def _of_values(name: str, values: Any, dtype: np.dtype, count: int) -> np.ndarray:
    if len(values) > count:
        raise invalid(f"{name} has {len(values)} values; its shape takes {count}.")
    is_half = dtype.itemsize == 2 and dtype.kind not in "iu"
    limits = np.iinfo(np.uint16 if is_half else dtype) if is_half or dtype.kind in "iu" else None
    if limits and values and (min(values) < limits.min or max(values) > limits.max):
        raise invalid(f"{name} has values out of the range of {dtype}.")
    if dtype.kind == "O":
        array = np.full([count], values[-1] if values else b"", object)
        array[: len(values)] = np.array([*values, None], object)[:-1]
        return array
    found = np.fromiter(values, np.uint16 if is_half else dtype, len(values)).view(dtype)
    if len(found) == count:
        return found
    array = np.full([count], found[-1] if len(found) else dtype.type(0), dtype)
    array[: len(found)] = found
    return array
