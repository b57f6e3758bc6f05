"""Loads state dicts of the official and of NVIDIA's PyTorch code."""

from pathlib import Path
from typing import Any

from txl_tf.convert.checkpoint_sizes import check_settings
from txl_tf.convert.pytorch_loading import model_from_state_dict
from txl_tf.convert.pytorch_system import NVIDIA_PYTORCH, OFFICIAL_PYTORCH, PytorchSystem
from txl_tf.convert.tensor_files import find_tensor_file, read_tensors
from txl_tf.models.transformer_xl import TransformerXL


def load_official_pytorch(
    source: str | Path, *, dtype: str = "float32", **what_shapes_cannot_tell: Any
) -> TransformerXL:
    """Loads a state dict of the official PyTorch code.

    The code itself saves a whole module as `model.pt`, which cannot be read
    without running it. Save the state dict where the code is:
    `torch.save(torch.load("model.pt").state_dict(), "state.pt")`.

    Only `attn_type` 0 can be loaded. The attention biases are shared by all
    layers, and `same_length` counts the query itself among the `M` keys.

    Args:
        source: path of a file of tensors (`.safetensors`, `.npz`, or a torch
            file where torch is installed), or of a folder with one.
        dtype: str. Dtype policy of the model.
        **what_shapes_cannot_tell: fields of `ModelConfig`. `memory_length` is
            needed for a model of no published size, `cutoffs` for one with
            `div_val` 1 and clusters, `pre_norm` for one with `pre_lnorm`.

    Returns:
        The model.

    Raises:
        InputMissingError: If there is no such file, or a package is missing.
        DataDamagedError: If it cannot be read, or a value is not finite.
        MismatchError: If a tensor is missing, surplus or misshapen, or a
            setting contradicts the shapes.
        ValueError: If a setting is not valid.
    """
    return _load(source, OFFICIAL_PYTORCH, what_shapes_cannot_tell, dtype)


def load_nvidia_pytorch(
    source: str | Path, *, dtype: str = "float32", **what_shapes_cannot_tell: Any
) -> TransformerXL:
    """Loads a state dict of NVIDIA's PyTorch code (DeepLearningExamples).

    Its checkpoints hold objects of its own beside the state dict. Where such a
    file does not load, save `checkpoint["model_state"]` alone.

    Args:
        source: as in `load_official_pytorch`.
        dtype: str. Dtype policy of the model.
        **what_shapes_cannot_tell: as in `load_official_pytorch`.

    Returns:
        The model.

    Raises:
        InputMissingError: If there is no such file, or a package is missing.
        DataDamagedError: If it cannot be read, or a value is not finite.
        MismatchError: If a tensor is missing, surplus or misshapen, or a
            setting contradicts the shapes.
        ValueError: If a setting is not valid.
    """
    return _load(source, NVIDIA_PYTORCH, what_shapes_cannot_tell, dtype)


def _load(
    source: str | Path, system: PytorchSystem, settings: dict[str, Any], dtype: str
) -> TransformerXL:
    check_settings(settings)
    path = find_tensor_file(source)
    tensors, _ = read_tensors(path)
    return model_from_state_dict(tensors, system, {}, settings, str(path), dtype)
