"""Tensors of other implementations: files, mapping to variables, and differences."""

import dataclasses
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np

from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError
from txl_tf.imports import require_extra
from txl_tf.storage.array_files import read_array_archive
from txl_tf.storage.files import file_bytes, first_line, open_regular_file
from txl_tf.storage.untrusted_files import (
    MAX_DESCRIPTION_BYTES,
    parse_json,
    read_json_object,
    storage_errors,
)

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignTensor:
    """Mapping between a tensor of a checkpoint and variables of a model.

    To build the tensor, variables are joined, transposed, then reversed along the first axis.
    """

    name: str
    """Name in the checkpoint."""
    variables: tuple[str, ...]
    """Variables that it contains, in order."""
    join: Literal["none", "concatenate", "stack"] = "none"
    """How several variables are joined: along `axis`, or a new first axis."""
    axis: int = 0
    """Axis of a concatenation."""
    is_transposed: bool = False
    """True if the axes are in reverse order."""
    is_reversed: bool = False
    """True if the rows are in reverse order."""
    is_copy: bool = False
    """True for an optional copy of another tensor, which must not differ."""

    def shape(self, shapes: dict[str, Shape]) -> Shape:
        """Returns the shape of the tensor from the shapes of the variables."""
        parts = [shapes[name] for name in self.variables]
        joined = parts[0]
        if self.join == "stack":
            joined = (len(parts), *parts[0])
        elif self.join == "concatenate":
            length = sum(part[self.axis] for part in parts)
            joined = (*parts[0][: self.axis], length, *parts[0][self.axis + 1 :])
        return joined[::-1] if self.is_transposed else joined

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
        return np.ascontiguousarray(joined[::-1] if self.is_reversed else joined)

    def to_ours(self, tensor: np.ndarray, shapes: dict[str, Shape]) -> dict[str, np.ndarray]:
        """Splits the tensor into the variables."""
        if self.is_reversed:
            tensor = tensor[::-1]
        if self.is_transposed:
            tensor = tensor.T
        if self.join == "stack":
            return dict(zip(self.variables, tensor, strict=True))
        if self.join == "concatenate":
            lengths = [shapes[name][self.axis] for name in self.variables]
            parts = np.split(tensor, np.cumsum(lengths)[:-1], axis=self.axis)
            return dict(zip(self.variables, parts, strict=True))
        return {self.variables[0]: tensor}


_NUM_SHOWN = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorDifferences:
    """Differences between a checkpoint and its model, by tensor names of the checkpoint."""

    missing: tuple[str, ...] = ()
    """Missing tensors."""
    surplus: tuple[str, ...] = ()
    """Tensors without a variable of the model."""
    misshapen: tuple[str, ...] = ()
    """Tensors of another shape or type, each with expected and actual."""
    unequal: tuple[str, ...] = ()
    """Copies that differ from their originals."""
    non_finite: tuple[str, ...] = ()
    """Tensors with infinite values or NaN."""

    def __bool__(self) -> bool:
        return any(dataclasses.astuple(self))

    @property
    def only_non_finite(self) -> bool:
        """True if names and shapes fit and only values do not."""
        return bool(self.non_finite) and not dataclasses.replace(self, non_finite=())

    def describe(self) -> str:
        """Formats the number and first names of every kind in one line."""
        kinds = {
            "missing": self.missing,
            "not of this model": self.surplus,
            "of another shape or type": self.misshapen,
            "not the copies they should be": self.unequal,
            "not finite": self.non_finite,
        }
        return "; ".join(
            f"{len(names)} {kind}: {_few(names)}" for kind, names in kinds.items() if names
        )


def mismatch(differences: TensorDifferences, where: str) -> MismatchError:
    """Creates the error of a checkpoint that does not fit, with the attribute `differences`."""
    what = f"The checkpoint does not fit the model. Tensors are {differences.describe()}"
    remedy = "Check that it is whole, of this implementation, and the settings given."
    error = MismatchError(what, where=where, remedy=remedy)
    error.differences = differences  # type: ignore[attr-defined]
    return error


def damaged(differences: TensorDifferences, where: str) -> DataDamagedError:
    """Creates the error of a checkpoint with non-finite values, with `differences`."""
    what = f"Tensors of the checkpoint are {differences.describe()}"
    error = DataDamagedError(what, where=where, remedy="Take an earlier checkpoint.")
    error.differences = differences  # type: ignore[attr-defined]
    return error


def _few(names: tuple[str, ...]) -> str:
    more = len(names) - _NUM_SHOWN
    return ", ".join(names[:_NUM_SHOWN]) + (f" and {more} more" if more > 0 else "")


_STATE_DICT = "state_dict/"
_CONFIG = "config"
_TORCH_SUFFIXES = (".bin", ".pt", ".pth")
_SUFFIXES = (".safetensors", ".npz", *_TORCH_SUFFIXES)
# Suffix of the index of a model in several files.
_INDEX = ".index.json"
# Largest number of tensors that share bytes.
_MAX_SHARING = 8
# Names of the state dict in a training checkpoint.
_NESTED = ("model_state", "state_dict")


def find_tensor_file(source: str | Path) -> Path:
    """Finds the tensor file of a path; in a folder, an index precedes safetensors, npz and torch.

    Raises InputMissingError without a file, MismatchError for several files of one kind.
    """
    source = Path(source)
    if source.is_file():
        return source
    if not source.is_dir():
        raise InputMissingError(
            "There is no such file or folder.", where=str(source), remedy="Check the path."
        )
    for suffix in (_INDEX, *_SUFFIXES):
        found = sorted(source.glob(f"*{suffix}"))
        if len(found) > 1:
            raise MismatchError(
                f"There are {len(found)} files that end in {suffix}.",
                where=str(source),
                remedy=f"Give the path of one of them; a model in parts has a file *{_INDEX}.",
            )
        if found:
            return found[0]
    raise InputMissingError(
        "There are no tensors in this folder.",
        where=str(source),
        remedy=f"A file of tensors ends in {', '.join(_SUFFIXES)}.",
    )


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], str | None]:
    """Reads all tensors of a file, and its configuration as JSON text, if it has one.

    Names in a `.npz` file may begin with `state_dict/`. Raises DataDamagedError for a file that
    cannot be read without running code, InputMissingError without PyTorch, UsageError without
    safetensors.
    """
    if path.name.endswith(_INDEX):
        return _read_parts(path), None
    if path.suffix == ".safetensors":
        return _read_safetensors(path), None
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix in _TORCH_SUFFIXES:
        return _read_torch(path), None
    raise DataDamagedError(
        "The file is of no known kind.",
        where=str(path),
        remedy=f"A file of tensors ends in {', '.join(_SUFFIXES)}.",
    )


def _read_parts(path: Path) -> dict[str, np.ndarray]:
    """Reads the tensors of all files that an index names, in its folder."""
    remedy = "Restore the index from a copy."
    with storage_errors("The index of the tensors cannot be read", str(path), remedy):
        places = read_json_object(str(path), remedy=remedy).get("weight_map")
    files = list(places.values()) if isinstance(places, dict) else [None]
    names = {name for name in files if isinstance(name, str) and Path(name).name == name}
    if not names.issuperset(files):
        raise DataDamagedError(
            "`weight_map` must name the file of every tensor.", where=str(path), remedy=remedy
        )
    tensors: dict[str, np.ndarray] = {}
    for name in sorted(names):
        if name.endswith(_INDEX) or not path.with_name(name).is_file():
            raise InputMissingError(
                f"A part of the model is missing: {name}",
                where=str(path),
                remedy="Download or copy all parts.",
            )
        tensors |= read_tensors(path.with_name(name))[0]
    return tensors


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes tensors for PyTorch; raises UsageError without the package safetensors."""
    _safetensors(str(path)).numpy.save_file(tensors, str(path), metadata={"format": "pt"})


def _safetensors(where: str) -> Any:
    require_extra("convert", "safetensors", purpose="This file", where=where)
    import safetensors.numpy

    return safetensors


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    safetensors = _safetensors(str(path))
    try:
        # The package checks this too, but only after mapping the whole file into memory.
        _require_safetensors_size(path)
        with safetensors.safe_open(str(path), framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def _require_safetensors_size(path: Path) -> None:
    """Compares the length of a file with the end of its last tensor."""
    with open_regular_file(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > min(num_bytes, MAX_DESCRIPTION_BYTES):
            raise ValueError(f"A header must lie in the file. Received: {header_bytes} bytes")
        header = parse_json(file.read(header_bytes))
    try:
        ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("A header must give the place of every tensor.") from error
    if num_bytes != 8 + header_bytes + max(ends, default=0):
        raise ValueError(f"The file must end with its last tensor. Received: {num_bytes} bytes")


def _read_npz(path: Path) -> tuple[dict[str, np.ndarray], str | None]:
    try:
        with open_regular_file(path) as file:
            arrays = read_array_archive(file)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    config = arrays.pop(_CONFIG, None)
    prefix = _STATE_DICT if any(name.startswith(_STATE_DICT) for name in arrays) else ""
    tensors = {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
    return tensors, None if config is None else str(config)


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise InputMissingError(
            "The package torch, which reads this file, is not installed.",
            where=str(path),
            remedy="Install torch, or convert the file to safetensors where it is.",
        ) from error
    try:
        open_regular_file(path).close()
        content = torch.load(path, map_location="cpu", weights_only=True)
        for key in _NESTED:
            if isinstance(content, dict) and isinstance(content.get(key), dict):
                content = content[key]
        _check_expansion(content, file_bytes(str(path)))
        return {name: _to_numpy(tensor) for name, tensor in content.items()}
    except Exception as error:  # torch raises many kinds of errors
        raise DataDamagedError(
            f"The file is not a state dict that loads without running code: {type(error).__name__}",
            where=str(path),
            remedy="Save it anew in its own environment: torch.save(model.state_dict(), FILE).",
        ) from error


def _check_expansion(tensors: dict[str, Any], num_bytes: int) -> None:
    """Refuses tensors whose views expand to far more memory than the file has."""
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    # Tied tensors share storage.
    if total > _MAX_SHARING * num_bytes:
        raise ValueError(f"{num_bytes} bytes stand for {total}")


def _to_numpy(tensor: Any) -> np.ndarray:
    tensor = tensor.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _damaged(path: Path, error: Exception) -> DataDamagedError:
    return DataDamagedError(
        f"The tensors cannot be read: {first_line(error)}",
        where=str(path),
        remedy="Restore the file from a copy.",
    )
