"""Mapping of the tensors of other implementations to variables, and models built by it."""

import dataclasses
import re

import keras
import numpy as np

from txl_tf.config.model import ModelConfig
from txl_tf.errors import DataDamagedError, JobError, MismatchError
from txl_tf.models.sizes import num_parameters
from txl_tf.models.transformer_xl import TransformerXL


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignTensor:
    """Mapping between a tensor of a checkpoint and variables of a model.

    The tensor is built from the variables in three steps: they are joined, the result is
    transposed, and its first axis is reversed. The model is built by the opposite steps.
    """

    name: str
    """Name of the tensor in the checkpoint."""
    variables: tuple[str, ...]
    """Paths of the variables in the tensor, in order."""
    is_stacked: bool = False
    """True if the variables are stacked on a new first axis, not concatenated along `axis`."""
    axis: int = 0
    """Axis of the variables along which they are concatenated."""
    is_transposed: bool = False
    is_reversed: bool = False
    is_copy: bool = False
    """True for a copy of another tensor, which may be missing and must not differ."""

    def to_theirs(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """Builds the tensor from the variables."""
        parts = [arrays[name] for name in self.variables]
        if self.is_stacked:
            tensor = np.stack(parts)
        else:
            # A single variable is not copied: it may be the largest of the model.
            tensor = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=self.axis)
        if self.is_transposed:
            tensor = tensor.T
        return tensor[::-1] if self.is_reversed else tensor

    def to_ours(
        self, tensor: np.ndarray, variables: dict[str, keras.Variable]
    ) -> dict[str, np.ndarray]:
        """Splits the tensor into the variables."""
        if self.is_reversed:
            tensor = tensor[::-1]
        if self.is_transposed:
            tensor = tensor.T
        if self.is_stacked:
            return dict(zip(self.variables, tensor, strict=True))
        lengths = [variables[name].shape[self.axis] for name in self.variables]
        parts = np.split(tensor, np.cumsum(lengths)[:-1], axis=self.axis)
        return dict(zip(self.variables, parts, strict=True))


def tensor_of(name: str, variable: str, **options: bool) -> ForeignTensor:
    """Returns the mapping of a tensor with one variable; `options` are fields of the mapping."""
    return ForeignTensor(name=name, variables=(variable,), **options)


def joined_projections(name: str, block: str, *, is_transposed: bool = False) -> ForeignTensor:
    """Returns the mapping of one kernel that joins the kernels of query, key and value."""
    return ForeignTensor(
        name=name,
        variables=tuple(f"{block}/attention/{part}/kernel" for part in ("query", "key", "value")),
        axis=1,
        is_transposed=is_transposed,
    )


def numbered_names(name: str, count: int) -> list[str]:
    """Returns the names of `count` variables, which have numbers if there are several."""
    return [name] if count == 1 else [f"{name}_{index}" for index in range(count)]


def uses_own_projection(config: ModelConfig, cluster: int) -> bool:
    """True if a projection of the softmax is a variable apart from the embedding's projection."""
    return bool(config.cutoffs) and not (config.share_tail_projections and cluster > 0)


# A checkpoint with fewer numbers than this share of the model's is refused before the model takes
# memory. If fewer are missing, an error names the tensors.
_LEAST_SHARE = 1 / 4
_NUM_SHOWN = 3


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
        config: `ModelConfig` of the model to build.
        table: list of `ForeignTensor`. The mapping of every tensor that the model needs.
        tensors: dict of arrays by their name in the checkpoint.
        where: str. Place of the checkpoint, for messages.
        ignored: pattern of the names that belong to no variable, such as an optimizer's state.
        dtype: str. Dtype policy of the model.

    Raises:
        MismatchError: If tensors are missing, unexpected or misshapen, or copies are unequal.
        DataDamagedError: If values are not finite. Both errors list all `differences`, unless far
            too few weights are there.
    """
    num_needed = num_parameters(config)
    num_weights = sum(tensor.size for tensor in tensors.values())
    if num_weights < _LEAST_SHARE * num_needed:
        raise MismatchError(
            f"The checkpoint has {num_weights:,} weights; a model of its sizes has {num_needed:,}.",
            where=where,
            remedy="Check that the file is whole.",
        )
    model = TransformerXL(config, dtype=dtype)
    variables = {variable.path: variable for variable in model.weights}
    _check_names_and_shapes(table, tensors, variables, where, ignored)
    arrays = _arrays_of_variables(table, tensors, variables, where)
    for path, variable in variables.items():
        variable.assign(arrays[path])
    return model


def _check_names_and_shapes(
    table: list[ForeignTensor],
    tensors: dict[str, np.ndarray],
    variables: dict[str, keras.Variable],
    where: str,
    ignored: re.Pattern[str],
) -> None:
    """Raises MismatchError unless the tensors are those of the table; copies may be missing."""
    initial = {path: variable.numpy() for path, variable in variables.items()}
    names = {entry.name for entry in table}
    differences = {
        "missing": [each.name for each in table if not (each.name in tensors or each.is_copy)],
        "unexpected": [name for name in tensors if not (name in names or ignored.fullmatch(name))],
        "misshapen": [
            text
            for each in table
            if each.name in tensors
            and (text := _misshape(each.name, tensors[each.name], each.to_theirs(initial).shape))
        ],
    }
    if any(differences.values()):
        raise differences_error(differences, where)


def _misshape(name: str, tensor: np.ndarray, expected: tuple[int, ...]) -> str | None:
    """Describes a tensor of another type or shape; None if it fits."""
    # NumPy's kind "f" lacks bfloat16, which another package adds.
    if tensor.dtype.kind != "f" and tensor.dtype.name != "bfloat16":
        return f"{name} has type {tensor.dtype}, not a float type"
    if tensor.shape != expected:
        return f"{name} has shape {tensor.shape}, not {expected}"
    return None


def _arrays_of_variables(
    table: list[ForeignTensor],
    tensors: dict[str, np.ndarray],
    variables: dict[str, keras.Variable],
    where: str,
) -> dict[str, np.ndarray]:
    """Returns the float32 array of each variable, by path; see `model_from_tensors` for errors."""
    values: dict[str, np.ndarray] = {}
    arrays: dict[str, np.ndarray] = {}
    present = [entry for entry in table if entry.name in tensors]
    for entry in present:
        with np.errstate(over="ignore"):  # larger values become infinite and are refused
            values[entry.name] = tensors[entry.name].astype(np.float32, copy=False)
        if not entry.is_copy:
            arrays |= entry.to_ours(values[entry.name], variables)
    non_finite = [name for name, value in values.items() if not np.isfinite(value).all()]
    unequal = [
        each.name
        for each in present
        if each.is_copy
        and each.name not in non_finite
        and not np.array_equal(values[each.name], each.to_theirs(arrays))
    ]
    if unequal or non_finite:
        raise differences_error({"unequal": unequal, "not finite": non_finite}, where)
    return arrays


def differences_error(differences: dict[str, list[str]], where: str) -> JobError:
    """Creates the error for tensors that do not fit; its `differences` are their names by kind."""
    differences = {kind: sorted(names) for kind, names in differences.items() if names}
    kinds = []
    for kind, names in differences.items():
        more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
        kinds.append(f"{len(names)} {kind}: {', '.join(names[:_NUM_SHOWN])}{more}")
    what = f"Tensors of the checkpoint do not fit the model. {'; '.join(kinds)}"
    error: JobError = MismatchError(
        what,
        where=where,
        remedy="Check the settings, and that the checkpoint is whole and of this implementation.",
    )
    if differences.keys() == {"not finite"}:
        error = DataDamagedError(what, where=where, remedy="Take an earlier checkpoint.")
    error.differences = differences  # type: ignore[attr-defined]
    return error
