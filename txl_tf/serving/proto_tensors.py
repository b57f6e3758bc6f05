"""Tensors in the messages of TensorFlow.

A message says a shape, and holds either the bytes of all elements or a list of
values. Where the list is shorter than the shape, its last value stands for the
rest, so a few bytes can stand for any number of gigabytes.
"""

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from tensorflow.core.framework import tensor_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.serving.request_error import RequestError
from txl_tf.serving.request_shapes import invalid, require_shapes, type_name
from txl_tf.serving.status_code import StatusCode

_FIELDS = {
    types_pb2.DT_FLOAT: ("float_val", np.dtype(np.float32)),
    types_pb2.DT_DOUBLE: ("double_val", np.dtype(np.float64)),
    types_pb2.DT_HALF: ("half_val", np.dtype(np.float16)),
    types_pb2.DT_BFLOAT16: ("half_val", np.dtype(ml_dtypes.bfloat16)),
    types_pb2.DT_INT8: ("int_val", np.dtype(np.int8)),
    types_pb2.DT_INT16: ("int_val", np.dtype(np.int16)),
    types_pb2.DT_INT32: ("int_val", np.dtype(np.int32)),
    types_pb2.DT_INT64: ("int64_val", np.dtype(np.int64)),
    types_pb2.DT_UINT8: ("int_val", np.dtype(np.uint8)),
    types_pb2.DT_UINT16: ("int_val", np.dtype(np.uint16)),
    types_pb2.DT_UINT32: ("uint32_val", np.dtype(np.uint32)),
    types_pb2.DT_UINT64: ("uint64_val", np.dtype(np.uint64)),
    types_pb2.DT_BOOL: ("bool_val", np.dtype(np.bool_)),
    types_pb2.DT_STRING: ("string_val", np.dtype(object)),
}
_SHAPE_FIELDS = {"dtype", "tensor_shape", "version_number"}
_CONTENT = "tensor_content"


def shapes_of_protos(
    protos: Mapping[str, tensor_pb2.TensorProto],
    tensors: Mapping[str, meta_graph_pb2.TensorInfo],
) -> dict[str, list[int]]:
    """The shapes that messages stand for; all that can be known is checked.

    Args:
        protos: map of name to `TensorProto`.
        tensors: map of name to `TensorInfo` of the signature.

    Returns:
        Dict of name to sizes.

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
    """The arrays that messages stand for.

    Args:
        protos: map of name to `TensorProto`.
        tensors: map of name to `TensorInfo` of the signature.

    Returns:
        Dict of name to array; object arrays of bytes for strings.

    Raises:
        RequestError: As in `shapes_of_protos`, and for values that are none of
            the type.
    """
    arrays = {}
    for name, sizes in shapes_of_protos(protos, tensors).items():
        field, dtype = _FIELDS[protos[name].dtype]
        content, count = protos[name].tensor_content, math.prod(sizes)
        if content:
            arrays[name] = _of_content(name, content, dtype, count).reshape(sizes)
        else:
            arrays[name] = _of_values(name, getattr(protos[name], field), dtype, count)
            arrays[name] = arrays[name].reshape(sizes)
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
    """The bytes of all strings, the last of which stands for the rest."""
    count = 1
    for size in sizes:
        count *= max(size, 0)
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
