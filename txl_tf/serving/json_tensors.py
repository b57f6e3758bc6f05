"""Tensors in JSON, in the two formats of TensorFlow Serving.

Row format: `instances`, a list with the inputs of each row. Columnar format:
`inputs`, the inputs of all rows by name. Where a signature has a single input,
its value may stand without its name; a single output always does. Strings are
JSON strings or `{"b64": ...}`; outputs whose name ends in `_bytes` are the latter.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from txl_tf.serving.request_error import RequestError
from txl_tf.serving.status_code import StatusCode

_BASE64 = "b64"
_BYTES_SUFFIX = "_bytes"
_ACCEPTED_KINDS = {"b": "b", "i": "i", "u": "iu", "f": "iuf"}


def arrays_of_request(
    body: Mapping[str, Any], signature: meta_graph_pb2.SignatureDef
) -> dict[str, np.ndarray]:
    """The inputs in the body of a request.

    Args:
        body: dict, the decoded JSON.
        signature: `SignatureDef`.

    Returns:
        Dict of name to array of the type that the signature takes.

    Raises:
        RequestError: INVALID_ARGUMENT if it is in neither format, or a value is
            not of its type; UNIMPLEMENTED for types that JSON has no form for.
    """
    if ("instances" in body) == ("inputs" in body):
        raise _invalid("The body must have either `instances` or `inputs`.")
    if "inputs" in body:
        columns = _columns(body["inputs"], signature)
    else:
        columns = _columns_of_rows(body["instances"], signature)
    return {name: _array(value, name, signature) for name, value in columns.items()}


def json_of_answer(outputs: Mapping[str, np.ndarray], *, in_rows: bool) -> dict[str, Any]:
    """The body of an answer.

    Args:
        outputs: dict of name to array.
        in_rows: bool. Whether the request was in row format.

    Returns:
        Dict of JSON values.

    Raises:
        RequestError: If an output has a type that JSON has no form for, or the
            outputs have different numbers of rows in row format.
    """
    columns = {name: _values(array, name) for name, array in outputs.items()}
    if not in_rows:
        single = next(iter(columns.values())) if len(columns) == 1 else columns
        return {"outputs": single}
    if any(array.ndim == 0 for array in outputs.values()):
        raise _invalid("An output has no rows; ask in columnar format.")
    if len({len(array) for array in outputs.values()}) > 1:
        raise _invalid("The outputs have different numbers of rows; ask in columnar format.")
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    rows = zip(*columns.values(), strict=True)
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}


def json_of_inputs(inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Inputs in columnar format.

    Args:
        inputs: dict of name to array; object arrays of bytes for strings.

    Returns:
        Dict of JSON values.
    """
    return {name: _values(array, name + _BYTES_SUFFIX) for name, array in inputs.items()}


def arrays_of_outputs(
    outputs: Any, signature: meta_graph_pb2.SignatureDef
) -> dict[str, np.ndarray]:
    """The arrays of an answer in columnar format.

    Args:
        outputs: the JSON value of `outputs`.
        signature: `SignatureDef` that was asked.

    Returns:
        Dict of name to array.

    Raises:
        RequestError: If a value does not fit the signature.
    """
    names = list(signature.outputs)
    columns = {names[0]: outputs} if len(names) == 1 else outputs
    if not isinstance(columns, dict) or set(columns) != set(names):
        raise _invalid("The answer has not the outputs of the signature.")
    return {
        name: _array_of(value, name, signature.outputs[name].dtype)
        for name, value in columns.items()
    }


def _columns(inputs: Any, signature: meta_graph_pb2.SignatureDef) -> dict[str, Any]:
    if isinstance(inputs, dict) and not _is_base64(inputs):
        return inputs
    return {_single_input(signature): inputs}


def _columns_of_rows(rows: Any, signature: meta_graph_pb2.SignatureDef) -> dict[str, list[Any]]:
    if not isinstance(rows, list) or not rows:
        raise _invalid("`instances` must be a list of at least one row.")
    if not isinstance(rows[0], dict) or _is_base64(rows[0]):
        return {_single_input(signature): rows}
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or set(row) != set(rows[0]):
            raise _invalid(f"instances[{place}] has not the inputs of instances[0].")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _single_input(signature: meta_graph_pb2.SignatureDef) -> str:
    names = sorted(signature.inputs)
    if len(names) != 1:
        raise _invalid(f"The inputs must be named: {', '.join(names)}.")
    return names[0]


def _array(value: Any, name: str, signature: meta_graph_pb2.SignatureDef) -> np.ndarray:
    if name not in signature.inputs:
        raise _invalid(f"The signature has no input `{name}`.")
    return _array_of(value, name, signature.inputs[name].dtype)


def _array_of(value: Any, name: str, enumerated: int) -> np.ndarray:
    dtype = tf.as_dtype(enumerated)
    if dtype == tf.string:
        value = _with_bytes(value, name)
        try:
            return np.array(value, object)
        except ValueError as error:
            raise _invalid(f"{name} is not rectangular.") from error
    if dtype == tf.bfloat16 or dtype.as_numpy_dtype not in (
        *(np.float32, np.float64, np.bool_),
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32, np.uint64),
    ):
        raise _without_json(name, types_pb2.DataType.Name(enumerated))
    try:
        array = np.array(value)
    except ValueError as error:
        raise _invalid(f"{name} is not rectangular.") from error
    return _converted(array, name, np.dtype(dtype.as_numpy_dtype))


def _converted(array: np.ndarray, name: str, dtype: np.dtype) -> np.ndarray:
    """Values as another type, unless that changes what they are."""
    if not array.size:
        return array.astype(dtype)
    if array.dtype.kind not in _ACCEPTED_KINDS[dtype.kind]:
        raise _invalid(f"{name} has values that are not of type {dtype}.")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        is_within = array.min() >= limits.min and array.max() <= limits.max
    else:
        largest = np.finfo(dtype).max if dtype.kind == "f" else 1
        is_within = not np.any(np.isfinite(array) & (np.abs(array) > largest))
    if not is_within:
        raise _invalid(f"{name} has values out of the range of {dtype}.")
    return array.astype(dtype)


def _with_bytes(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_with_bytes(element, name) for element in value]
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise _invalid(f"{name} has a string with a lone surrogate.") from error
    if _is_base64(value):
        try:
            return base64.b64decode(value[_BASE64], validate=True)
        except binascii.Error as error:
            raise _invalid(f"{name} has a string that is not base64.") from error
    raise _invalid(f"{name} has values that are not strings.")


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == [_BASE64] and isinstance(value[_BASE64], str)


def _values(array: np.ndarray, name: str) -> Any:
    if array.dtype == object:
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


def _invalid(message: str) -> RequestError:
    return RequestError(StatusCode.INVALID_ARGUMENT, message)


def _without_json(name: str, dtype: str) -> RequestError:
    message = f"{name} is of type {dtype}, which has no form in JSON; ask over gRPC."
    return RequestError(StatusCode.UNIMPLEMENTED, message)
