"""Tensors of other implementations: their files, the variables they hold, a model from them."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from txl_tf.config.model import ModelConfig
from txl_tf.errors import DataDamagedError, InputMissingError, JobError, MismatchError, errors_as
from txl_tf.imports import require_extra
from txl_tf.models.sizes import num_parameters
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.storage.array_archives import read_array_archive


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignTensor:
    """Mapping between a tensor of a checkpoint and variables of a model.

    To build the tensor, variables are joined, transposed, then reversed along the first axis.
    """

    name: str
    """Name in the checkpoint."""
    variables: tuple[str, ...]
    """Paths of the variables that it contains, in order."""
    join: Literal["none", "concatenate", "stack"] = "none"
    """How several variables are joined: along `axis`, or a new first axis."""
    axis: int = 0
    is_transposed: bool = False
    is_reversed: bool = False
    is_copy: bool = False
    """True for an optional copy of another tensor, which must not differ."""

    def to_theirs(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """Builds the tensor from the variables."""
        parts = [arrays[name] for name in self.variables]
        joined = parts[0]
        if self.join == "stack":
            joined = np.stack(parts)
        elif self.join == "concatenate":
            joined = np.concatenate(parts, axis=self.axis)
        if self.is_transposed:
            joined = joined.T
        return joined[::-1] if self.is_reversed else joined

    def to_ours(
        self, tensor: np.ndarray, variables: dict[str, keras.Variable]
    ) -> dict[str, np.ndarray]:
        """Splits the tensor into the variables."""
        if self.is_reversed:
            tensor = tensor[::-1]
        if self.is_transposed:
            tensor = tensor.T
        if self.join == "stack":
            return dict(zip(self.variables, tensor, strict=True))
        if self.join == "concatenate":
            lengths = [variables[name].shape[self.axis] for name in self.variables]
            parts = np.split(tensor, np.cumsum(lengths)[:-1], axis=self.axis)
            return dict(zip(self.variables, parts, strict=True))
        return {self.variables[0]: tensor}


def same(name: str, variable: str, *, is_copy: bool = False) -> ForeignTensor:
    """Returns the mapping of a tensor that is one variable as it is."""
    return ForeignTensor(name=name, variables=(variable,), is_copy=is_copy)


def joined_projections(name: str, block: str, *, is_transposed: bool = False) -> ForeignTensor:
    """Returns the mapping of the kernels of query, key and value side by side."""
    parts = ("query", "key", "value")
    return ForeignTensor(
        name=name,
        variables=tuple(f"{block}/attention/{part}/kernel" for part in parts),
        join="concatenate",
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


_TORCH_SUFFIXES = (".bin", ".pt", ".pth")
_SUFFIXES = (".safetensors", ".npz", *_TORCH_SUFFIXES)
# Largest number of tensors that share bytes.
_MAX_SHARING = 8
# Names of the state dict in a training checkpoint.
_NESTED = ("model_state", "state_dict", "model_state_dict", "model")


_GIVE_ANOTHER = "Restore the file from a copy, or give another file."


def find_tensor_file(source: str | Path) -> Path:
    """Finds the tensor file of a path; in a folder, safetensors precede npz and torch.

    Raises InputMissingError without a file, MismatchError for several files of one kind.
    """
    source = Path(source)
    if source.is_file():
        return source
    for suffix in _SUFFIXES:
        found = sorted(path for path in source.glob(f"*{suffix}") if path.is_file())
        if len(found) > 1:
            raise MismatchError(
                f"There are {len(found)} files that end in {suffix}.",
                where=str(source),
                remedy="Give the path of one of them.",
            )
        if found:
            return found[0]
    raise InputMissingError(
        "There is no file of tensors.",
        where=str(source),
        remedy=f"Give a file that ends in {', '.join(_SUFFIXES)}, or a folder with one.",
    )


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a file.

    Raises DataDamagedError for a file that cannot be read without running code, InputMissingError
    without PyTorch, UsageError without safetensors.
    """
    if path.suffix in _TORCH_SUFFIXES:
        return _read_torch(path)
    with errors_as(
        DataDamagedError,
        (OSError, TypeError, ValueError),
        "The tensors cannot be read",
        str(path),
        _GIVE_ANOTHER,
    ):
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        if path.suffix == ".npz":
            with path.open("rb") as file:
                return read_array_archive(file)
        raise ValueError(f"the name of the file must end in {', '.join(_SUFFIXES)}")


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes tensors for PyTorch; raises UsageError without the package safetensors."""
    arrays = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    _safetensors(str(path)).numpy.save_file(arrays, str(path), metadata={"format": "pt"})


def _safetensors(where: str) -> Any:
    require_extra("convert", "safetensors", purpose="This file", where=where)
    import safetensors.numpy

    return safetensors


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    safetensors = _safetensors(str(path))
    with (
        errors_as(
            DataDamagedError,
            safetensors.SafetensorError,
            "The tensors cannot be read",
            str(path),
            _GIVE_ANOTHER,
        ),
        safetensors.safe_open(str(path), framework="numpy") as file,
    ):
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise InputMissingError(
            "The package torch, which reads this file, is not installed.",
            where=str(path),
            remedy="Install torch, or convert the file to safetensors on a machine that has torch.",
        ) from error
    with errors_as(
        DataDamagedError,
        Exception,
        "The file is not a state dict that loads without running code",
        str(path),
        "Save it again where the model runs: torch.save(model.state_dict(), FILE).",
    ):
        content = torch.load(path, map_location="cpu", weights_only=True)
        for key in _NESTED:
            if isinstance(content, dict) and isinstance(content.get(key), dict):
                content = content[key]
        if others := [k for k, each in content.items() if not isinstance(each, torch.Tensor)]:
            raise ValueError(f"these entries are no tensors: {', '.join(map(str, others[:3]))}")
        # Tied tensors share storage; a view may expand to far more memory than the file has.
        num_bytes = sum(each.numel() * each.element_size() for each in content.values())
        if num_bytes > _MAX_SHARING * path.stat().st_size:
            raise ValueError(f"The tensors expand to {num_bytes} bytes.")
        return {
            name: (each.float() if each.is_floating_point() else each).detach().numpy()
            for name, each in content.items()
        }
