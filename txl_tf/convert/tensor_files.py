"""Files of tensors: safetensors, NumPy's `.npz`, and state dicts that PyTorch saved."""

from pathlib import Path
from typing import Any

import numpy as np

from txl_tf.errors import DataDamagedError, InputMissingError, MismatchError, errors_as
from txl_tf.imports import require_extra
from txl_tf.storage.array_archives import read_array_archive

_TORCH_SUFFIXES = (".bin", ".pt", ".pth")
_SUFFIXES = (".safetensors", ".npz", *_TORCH_SUFFIXES)
# Tensors may share bytes, so they may be larger than their file by this factor.
_MAX_SHARING = 8
# Keys of the state dict in a training checkpoint.
_NESTED = ("model_state", "state_dict", "model_state_dict", "model")
_GIVE_ANOTHER = "Restore the file from a copy, or give another file."


def find_tensor_file(source: str | Path) -> Path:
    """Finds the tensor file of a path: the file itself, or the file in a folder.

    In a folder, safetensors precede npz, and npz precedes torch. Raises InputMissingError if there
    is no file, and MismatchError if there are several files of one kind.
    """
    source = Path(source)
    if source.is_file():
        return source
    for suffix in _SUFFIXES:
        paths = sorted(path for path in source.glob(f"*{suffix}") if path.is_file())
        if len(paths) > 1:
            raise MismatchError(
                f"There are {len(paths)} files that end in {suffix}.",
                where=str(source),
                remedy="Give the path of one of them.",
            )
        if paths:
            return paths[0]
    raise InputMissingError(
        "There is no file of tensors.",
        where=str(source),
        remedy=f"Give a file that ends in {', '.join(_SUFFIXES)}, or a folder with one.",
    )


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads all tensors of a file, without running code from it.

    Raises DataDamagedError if that is not possible. A file of PyTorch raises InputMissingError if
    torch is not installed, and safetensors raise UsageError if their package is not installed.
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
    """Writes a file for PyTorch; raises UsageError if the package safetensors is missing."""
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
