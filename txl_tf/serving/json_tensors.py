"""Tensors in JSON, in the two formats of TensorFlow Serving.

Row format: `instances`, a list with the inputs of each row. Columnar format:
`inputs`, the inputs of all rows by name. Where a signature has a single input,
its value may stand without its name; a single output always does. Strings are
JSON strings or `{"b64": ...}`; outputs whose name ends in `_bytes` are the latter.
"""

import base64
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.serving.errors import RequestError, StatusCode
from txl_tf.serving.request_shapes import (
    MAX_AXES,
    invalid,
    require_names,
    require_shapes,
    type_name,
)

_BASE64 = "b64"
_BYTES_SUFFIX = "_bytes"
# What the values of an array may be in JSON, by the kind of its type.
_ACCEPTED: dict[str, set[type]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float},
    "O": {str, dict},
}
_NUMBERS = (
    *(np.float32, np.float64, np.bool_),
    *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64),
)


def arrays_of_request(
    body: Mapping[str, Any], signature: meta_graph_pb2.SignatureDef
) -> dict[str, np.ndarray]:
    """Returns the inputs in the body of a request.

    Returns:
        Dict of name to array of the type that the signature takes.

    Raises:
        RequestError: INVALID_ARGUMENT if it is in neither format, or a value is
            not of its type; UNIMPLEMENTED for types that JSON has no form for.
    """
    if ("instances" in body) == ("inputs" in body):
        raise invalid("The body must have either `instances` or `inputs`.")
    if "inputs" in body:
        columns = _columns(body["inputs"], signature)
    else:
        columns = _columns_of_rows(body["instances"], signature)
    require_names(columns, signature)
    return _arrays(columns, signature.inputs)


def json_of_answer(outputs: Mapping[str, np.ndarray], *, in_rows: bool) -> dict[str, Any]:
    """Returns the body of an answer, in row format if the request was.

    Raises:
        RequestError: If an output has a type that JSON has no form for, or the
            outputs have different numbers of rows in row format.
    """
    columns = {name: _values(array, name) for name, array in outputs.items()}
    if not in_rows:
        single = next(iter(columns.values())) if len(columns) == 1 else columns
        return {"outputs": single}
    if any(array.ndim == 0 for array in outputs.values()):
        raise invalid("An output has no rows; ask in columnar format.")
    if len({len(array) for array in outputs.values()}) > 1:
        raise invalid("The outputs have different numbers of rows; ask in columnar format.")
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    rows = zip(*columns.values(), strict=True)
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


def json_of_inputs(inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns inputs in columnar format; strings are object arrays of bytes."""
    return {name: _values(array, name + _BYTES_SUFFIX) for name, array in inputs.items()}


def arrays_of_outputs(
    outputs: Any, signature: meta_graph_pb2.SignatureDef
) -> dict[str, np.ndarray]:
    """Returns the arrays of an answer in columnar format.

    Raises:
        RequestError: If a value does not fit the signature.
    """
    names = list(signature.outputs)
    columns = {names[0]: outputs} if len(names) == 1 else outputs
    if not isinstance(columns, dict) or set(columns) != set(names):
        received = sorted(columns) if isinstance(columns, dict) else type(columns).__name__
        raise invalid(
            "The response lacks outputs of the signature. "
            f"Expected: {sorted(names)}, received: {str(received)[:200]}"
        )
    return _arrays(columns, signature.outputs)


def _columns(inputs: Any, signature: meta_graph_pb2.SignatureDef) -> dict[str, Any]:
    if isinstance(inputs, dict) and not _is_base64(inputs):
        return inputs
    return {_single_input(signature): inputs}


def _columns_of_rows(rows: Any, signature: meta_graph_pb2.SignatureDef) -> dict[str, list[Any]]:
    if not isinstance(rows, list) or not rows:
        raise invalid("`instances` must be a list of at least one row.")
    if not isinstance(rows[0], dict) or _is_base64(rows[0]):
        return {_single_input(signature): rows}
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != set(rows[0]):
            raise invalid(f"instances[{place}] has not the inputs of instances[0].")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _single_input(signature: meta_graph_pb2.SignatureDef) -> str:
    names = sorted(signature.inputs)
    if len(names) != 1:
        raise invalid(f"The inputs must be named: {', '.join(names)}.")
    return names[0]


def _arrays(
    columns: Mapping[str, Any], tensors: Mapping[str, meta_graph_pb2.TensorInfo]
) -> dict[str, np.ndarray]:
    """Arrays of nested lists, which are made only where all of them may be."""
    shapes, flat, string_bytes = {}, {}, {}
    for name, value in columns.items():
        dtype = _dtype_of(name, tensors[name])
        shapes[name], values = _flat(value, name)
        if not set(map(type, values)) <= _ACCEPTED[dtype.kind]:
            kind = "strings" if dtype.kind == "O" else f"of type {dtype}"
            raise invalid(f"{name} has values that are not {kind}.")
        if dtype.kind == "O":
            values = [_bytes_of(each, name) for each in values]
            string_bytes[name] = sum(map(len, values))
        flat[name] = values
    require_shapes(shapes, tensors, string_bytes)
    return {
        name: _numbers(flat.pop(name), name, _dtype_of(name, tensors[name])).reshape(sizes)
        for name, sizes in shapes.items()
    }


def _dtype_of(name: str, tensor: meta_graph_pb2.TensorInfo) -> np.dtype:
    dtype = tf.as_dtype(tensor.dtype)
    if dtype == tf.string:
        return np.dtype(object)
    if dtype == tf.bfloat16 or dtype.as_numpy_dtype not in _NUMBERS:
        raise _without_json(name, type_name(tensor.dtype))
    return np.dtype(dtype.as_numpy_dtype)


def _flat(value: Any, name: str) -> tuple[list[int], list[Any]]:
    """Returns the sizes of nested lists, and what they hold, in order; they must be rectangular."""
    sizes: list[int] = []
    values = [value]
    while set(map(type, values)) == {list}:
        if len(sizes) == MAX_AXES:
            raise invalid(f"{name} has lists nested more than {MAX_AXES} deep.")
        lengths = set(map(len, values))
        if len(lengths) > 1:
            raise invalid(f"{name} is not rectangular.")
        sizes.append(lengths.pop())
        values = list(itertools.chain.from_iterable(values))
    if list in set(map(type, values)):
        raise invalid(f"{name} is not rectangular.")
    return sizes, values


def _numbers(values: list[Any], name: str, dtype: np.dtype) -> np.ndarray:
    """Values as an array, unless that changes what they are."""
    if dtype.kind == "O":
        # With one more element, an array of arrays is never tried.
        return np.array([*values, None], object)[:-1]
    out_of_range = f"{name} has values out of the range of {dtype}."
    if dtype.kind in "iu" and values:
        limits = np.iinfo(dtype)
        if min(values) < limits.min or max(values) > limits.max:
            raise invalid(out_of_range)
    if dtype.kind == "f":
        try:
            array = np.array(values, np.float64)
        except OverflowError as error:
            raise invalid(out_of_range) from error
        if not np.all(np.abs(array) <= np.finfo(dtype).max):
            raise invalid(f"{name} has values that are not finite numbers of {dtype}.")
        return array.astype(dtype)
    return np.array(values, dtype)


def _bytes_of(value: str | dict[str, Any], name: str) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise invalid(f"{name} has a string with a lone surrogate.") from error
    if not _is_base64(value):
        raise invalid(f"{name} has values that are not strings.")
    try:
        return base64.b64decode(value[_BASE64], validate=True)
    except ValueError as error:
        raise invalid(f"{name} has a string that is not base64.") from error


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == [_BASE64] and isinstance(value[_BASE64], str)


def _values(array: np.ndarray, name: str) -> Any:
    if array.dtype.kind == "O":
        return _strings(array.tolist(), name.endswith(_BYTES_SUFFIX))
    if array.dtype.kind not in "biuf":
        raise _without_json(name, str(array.dtype))
    return array.tolist()


def _strings(value: Any, as_base64: bool) -> Any:
    if isinstance(value, list):
        return [_strings(element, as_base64) for element in value]
    if as_base64:
        return {_BASE64: base64.b64encode(value).decode()}
    return value.decode("utf-8", "replace")


def _without_json(name: str, dtype: str) -> RequestError:
    message = f"{name} is of type {dtype}, which has no form in JSON; ask over gRPC."
    return RequestError(StatusCode.UNIMPLEMENTED, message)
