"""Loads and saves models of Hugging Face's `TransfoXLLMHeadModel`."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from txl_tf.convert.checkpoint_sizes import check_settings
from txl_tf.convert.hugging_face_config import from_hugging_face_config, to_hugging_face_config
from txl_tf.convert.pytorch_loading import model_from_state_dict
from txl_tf.convert.pytorch_names import pytorch_table
from txl_tf.convert.pytorch_system import HUGGING_FACE
from txl_tf.convert.tensor_files import find_tensor_file, read_tensors, write_safetensors
from txl_tf.convert.variable_names import named_variables
from txl_tf.durability import flush_to_disk, flush_tree_to_disk
from txl_tf.errors import DataDamagedError, OutputExistsError, StorageError
from txl_tf.file_storage import first_line
from txl_tf.json_text import parse_json
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.untrusted_files import read_json_object

_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "model.safetensors"
_CONFIG_REMEDY = "Restore it from a copy, or give the file of tensors alone."


def load_hugging_face(
    source: str | Path, *, dtype: str = "float32", **what_shapes_cannot_tell: Any
) -> TransformerXL:
    """Loads a model of Hugging Face's Transformers.

    Sizes are read off the tensors. The rest comes from `config.json` beside
    them, from the arguments, which win, or from the published model of these
    sizes.

    Args:
        source: path of a folder, or of a file of tensors: `.safetensors`,
            `.npz` of a state dict, or a torch file where torch is installed.
            Nothing is unpickled.
        dtype: str. Dtype policy of the model.
        **what_shapes_cannot_tell: fields of `ModelConfig`. `memory_length` is
            needed where neither a `config.json` nor a published size tells it.

    Returns:
        The model.

    Raises:
        InputMissingError: If there is no such file.
        UsageError: If a package is missing.
        DataDamagedError: If it cannot be read, or a value is not finite.
        MismatchError: If a tensor is missing, surplus or misshapen, if sizes
            contradict each other, or if the configuration asks for something
            that is not supported. The attribute `differences` of an error
            about tensors lists all of them.
        ValueError: If a setting is not valid.
    """
    check_settings(what_shapes_cannot_tell)
    path = find_tensor_file(source)
    tensors, text = read_tensors(path)
    config_path = path.with_name(_CONFIG_FILE)
    stored = {}
    if text is not None:
        stored = from_hugging_face_config(_parsed(text, path), str(path))
    elif os.path.lexists(config_path):
        stored = from_hugging_face_config(_read_config(config_path), str(config_path))
    return model_from_state_dict(
        tensors, HUGGING_FACE, stored, what_shapes_cannot_tell, str(path), dtype
    )


def save_hugging_face(model: TransformerXL, folder: str | Path) -> Path:
    """Saves a model so that `TransfoXLLMHeadModel.from_pretrained` loads it.

    Args:
        model: `TransformerXL`.
        folder: path of the folder to make.

    Returns:
        The folder, with `config.json` and `model.safetensors`.

    Raises:
        ValueError: If the model has an option that Hugging Face has not.
        OutputExistsError: If the folder exists; it is left alone.
        UsageError: If the package safetensors is not installed.
        StorageError: If the folder cannot be written.
    """
    config = to_hugging_face_config(model.config)
    folder = Path(folder)
    if os.path.lexists(folder):
        raise OutputExistsError(
            "The output exists already.",
            where=str(folder),
            remedy="Name another folder, or remove this one.",
        )
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        write_safetensors(temporary / _WEIGHTS_FILE, hugging_face_tensors(model))
        (temporary / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        flush_tree_to_disk(temporary)
        temporary.rename(folder)
        flush_to_disk(folder.parent)
    except OSError as error:
        raise StorageError(
            f"The model cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="Make room, or choose another folder.",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def hugging_face_tensors(model: TransformerXL) -> dict[str, np.ndarray]:
    """The state dict of a model, with the names of Hugging Face.

    Args:
        model: `TransformerXL`.

    Returns:
        Dict of name to float32 array, copies of tied tensors included.
    """
    arrays = {
        name: np.asarray(variable.numpy(), dtype=np.float32)
        for name, variable in named_variables(model).items()
    }
    table = pytorch_table(model.config, HUGGING_FACE)
    tensors = {entry.name: entry.to_theirs(arrays) for entry in table}
    exponents = np.arange(0.0, model.config.hidden_dim, 2.0) / model.config.hidden_dim
    tensors["transformer.pos_emb.inv_freq"] = (10000.0**-exponents).astype(np.float32)
    return tensors


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(str(path), remedy=_CONFIG_REMEDY)
    except OSError as error:
        raise _damaged_config(path, error) from error


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        config = parse_json(text)
    except ValueError as error:
        raise _damaged_config(path, error) from error
    if not isinstance(config, dict):
        raise _damaged_config(path, TypeError(f"it is a {type(config).__name__}"))
    return config


def _damaged_config(path: Path, error: Exception) -> DataDamagedError:
    return DataDamagedError(
        f"The configuration beside the tensors is not a JSON object: {first_line(error)}",
        where=str(path),
        remedy=_CONFIG_REMEDY,
    )
