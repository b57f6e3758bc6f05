"""Tensors of other implementations: their files, the variables they hold, a model from them."""

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


def same(name: str, variable: str, **options: bool) -> ForeignTensor:
    """Returns the mapping of a tensor with one variable; `options` are fields of the mapping."""
    return ForeignTensor(name=name, variables=(variable,), **options)


def joined_projections(name: str, block: str, *, is_transposed: bool = False) -> ForeignTensor:
    """Returns the mapping of the kernels of query, key and value side by side."""
    parts = ("query", "key", "value")
    return ForeignTensor(
        name=name,
        variables=tuple(f"{block}/attention/{part}/kernel" for part in parts),
        axis=1,
        is_transposed=is_transposed,
    )


def numbered(name: str, count: int) -> list[str]:
    """Returns names of several variables, numbered if there is more than one."""
    return [name] if count == 1 else [f"{name}_{index}" for index in range(count)]


def uses_own_projection(config: ModelConfig, cluster: int) -> bool:
    """True if the softmax projection of the cluster, if any, is separate from the embedding's."""
    return bool(config.cutoffs) and not (config.share_tail_projections and cluster > 0)


# A checkpoint with fewer numbers than this part of the model's is refused before it is built.
_LEAST_PART = 1 / 4


def model_from_tensors(
    config: ModelConfig,
    table: list[ForeignTensor],
    tensors: dict[str, np.ndarray],
    where: str,
    ignored: re.Pattern[str],
    dtype: str,
) -> TransformerXL:
    """Builds a model from the tensors of a checkpoint, if all of them fit.

    Raises MismatchError for missing, unexpected or misshapen tensors or unequal copies,
    DataDamagedError for values that are not finite, both with all `differences`.
    """
    # 1. As many numbers as the sizes promise, before memory is taken for them.
    needed, found = num_parameters(config), sum(tensor.size for tensor in tensors.values())
    if found < _LEAST_PART * needed:
        raise MismatchError(
            f"The checkpoint has {found:,} weights; a model of its sizes has {needed:,}.",
            where=where,
            remedy="Check that the file is whole.",
        )
    # 2. All names and shapes; copies may be left out.
    model = TransformerXL(config, dtype=dtype)
    variables = {variable.path: variable for variable in model.weights}
    initial = {name: variable.numpy() for name, variable in variables.items()}
    known = {entry.name for entry in table}
    present = [entry for entry in table if entry.name in tensors]
    differences = {
        "missing": [each.name for each in table if not (each.name in tensors or each.is_copy)],
        "unexpected": [name for name in tensors if not (name in known or ignored.fullmatch(name))],
        "misshapen": [
            text
            for each in present
            if (text := _misshape(each.name, tensors[each.name], each.to_theirs(initial).shape))
        ],
    }
    if any(differences.values()):
        raise differences_error(differences, where)
    # 3. All numbers in float32: finite, and copies equal to their originals.
    values: dict[str, np.ndarray] = {}
    originals: dict[str, np.ndarray] = {}
    for entry in present:
        with np.errstate(over="ignore"):  # larger values become infinite and are refused
            values[entry.name] = tensors[entry.name].astype(np.float32, copy=False)
        if not entry.is_copy:
            originals |= entry.to_ours(values[entry.name], variables)
    non_finite = [name for name, value in values.items() if not np.isfinite(value).all()]
    unequal = [
        each.name
        for each in present
        if each.is_copy
        and each.name not in non_finite
        and not np.array_equal(values[each.name], each.to_theirs(originals))
    ]
    if unequal or non_finite:
        raise differences_error({"unequal": unequal, "not finite": non_finite}, where)
    for name, variable in variables.items():
        variable.assign(originals[name])
    return model


def _misshape(name: str, tensor: np.ndarray, expected: tuple[int, ...]) -> str | None:
    # bfloat16 is not of NumPy's kind "f".
    if tensor.dtype.kind != "f" and tensor.dtype.name != "bfloat16":
        return f"{name} has type {tensor.dtype}, not a float type"
    if tensor.shape != expected:
        return f"{name} has shape {tensor.shape}, not {expected}"
    return None


_NUM_SHOWN = 3


def differences_error(differences: dict[str, list[str]], where: str) -> JobError:
    """Creates the error of tensors that do not fit, by kind, with the attribute `differences`."""
    found = {kind: sorted(names) for kind, names in differences.items() if names}
    kinds = []
    for kind, names in found.items():
        more = f" and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
        kinds.append(f"{len(names)} {kind}: {', '.join(names[:_NUM_SHOWN])}{more}")
    what = f"Tensors of the checkpoint do not fit the model. {'; '.join(kinds)}"
    remedy = "Check the settings, and that the checkpoint is whole and of this implementation."
    error: JobError = MismatchError(what, where=where, remedy=remedy)
    if found.keys() == {"not finite"}:
        error = DataDamagedError(what, where=where, remedy="Take an earlier checkpoint.")
    error.differences = found  # type: ignore[attr-defined]
    return error
