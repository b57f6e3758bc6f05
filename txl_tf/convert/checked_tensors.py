"""Compares a checkpoint with what a model needs, before anything is changed."""

import re
from collections.abc import Iterable

import numpy as np

from txl_tf.config.model_config import ModelConfig
from txl_tf.convert.foreign_tensor import ForeignTensor, Shape
from txl_tf.convert.tensor_differences import TensorDifferences, damaged, mismatch
from txl_tf.convert.variable_names import named_variables, variable_shapes
from txl_tf.models.transformer_xl import TransformerXL


def model_from_tensors(
    config: ModelConfig,
    table: list[ForeignTensor],
    tensors: dict[str, np.ndarray],
    where: str,
    ignored: re.Pattern[str],
    dtype: str,
) -> TransformerXL:
    """Builds a model from the tensors of a checkpoint, if all of them fit.

    Args:
        config: `ModelConfig`.
        table: list of `ForeignTensor` that holds every variable of the model.
        tensors: dict of their names to arrays.
        where: str. The checkpoint, for messages.
        ignored: pattern of the names that carry no weights.
        dtype: str. Dtype policy of the model.

    Returns:
        The model.

    Raises:
        MismatchError: If a tensor is missing, surplus, misshapen or not the
            copy it should be; its attribute `differences` has all of them.
        DataDamagedError: If a value is not finite; likewise.
    """
    shapes = variable_shapes(config)
    _raise_for(_differences_of_shapes(table, tensors, shapes, ignored), where)
    tensors = {name: _float32(tensor) for name, tensor in tensors.items() if _is_float(tensor)}
    _raise_for(_differences_of_values(table, tensors, shapes), where)
    arrays: dict[str, np.ndarray] = {}
    for entry in table:
        if not entry.is_copy:
            arrays |= entry.to_ours(tensors[entry.name], shapes)
    return _build(config, arrays, dtype)


def _build(config: ModelConfig, arrays: dict[str, np.ndarray], dtype: str) -> TransformerXL:
    model = TransformerXL(config, dtype=dtype)
    variables = named_variables(model)
    assert variables.keys() == arrays.keys(), set(variables) ^ set(arrays)
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return model


def _differences_of_shapes(
    table: list[ForeignTensor],
    tensors: dict[str, np.ndarray],
    shapes: dict[str, Shape],
    ignored: re.Pattern[str],
) -> TensorDifferences:
    known = {entry.name for entry in table}
    surplus = [name for name in tensors if name not in known and not ignored.fullmatch(name)]
    missing = [e.name for e in table if e.name not in tensors and not e.is_copy]
    misshapen = [
        _misshape(entry.name, tensors[entry.name], entry.shape(shapes))
        for entry in table
        if entry.name in tensors
    ]
    return TensorDifferences(
        missing=_sorted(missing),
        surplus=_sorted(surplus),
        misshapen=_sorted(each for each in misshapen if each is not None),
    )


def _differences_of_values(
    table: list[ForeignTensor], tensors: dict[str, np.ndarray], shapes: dict[str, Shape]
) -> TensorDifferences:
    entries = [entry for entry in table if entry.name in tensors]
    non_finite = [e.name for e in entries if not np.isfinite(tensors[e.name]).all()]
    originals: dict[str, np.ndarray] = {}
    for entry in entries:
        if not entry.is_copy:
            originals |= entry.to_ours(tensors[entry.name], shapes)
    unequal = [
        entry.name
        for entry in entries
        if entry.is_copy
        and entry.name not in non_finite
        and not np.array_equal(tensors[entry.name], entry.to_theirs(originals))
    ]
    return TensorDifferences(unequal=_sorted(unequal), non_finite=_sorted(non_finite))


def _misshape(name: str, tensor: np.ndarray, expected: Shape) -> str | None:
    if not _is_float(tensor):
        return f"{name} is {tensor.dtype}, not a float"
    if tensor.shape != expected:
        return f"{name} is {_text(tensor.shape)}, not {_text(expected)}"
    return None


def _raise_for(differences: TensorDifferences, where: str) -> None:
    if not differences:
        return
    make_error = damaged if differences.only_non_finite else mismatch
    raise make_error(differences, where)


def _is_float(tensor: np.ndarray) -> bool:
    # NumPy does not count bfloat16 among its own floats.
    return tensor.dtype.kind == "f" or tensor.dtype.name == "bfloat16"


def _float32(tensor: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, and is refused
        return tensor.astype(np.float32, copy=False)


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "a number"
