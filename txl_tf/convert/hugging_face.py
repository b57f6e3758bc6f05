"""Import and export of Hugging Face Transformer-XL models and their `config.json`."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from txl_tf.config.model import ModelConfig
from txl_tf.convert.foreign_tensors import find_tensor_file, read_tensors, write_safetensors
from txl_tf.convert.model_building import named_variables
from txl_tf.convert.model_sizes import check_settings
from txl_tf.convert.pytorch import model_from_state_dict
from txl_tf.convert.pytorch_names import HUGGING_FACE, pytorch_table
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.storage.files import first_line
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.untrusted_files import parse_json_object, read_json_object, storage_errors

_INTEGERS = {
    "vocab_size": "vocabulary_size",
    "n_layer": "num_layers",
    "d_model": "hidden_dim",
    "d_embed": "embedding_dim",
    "n_head": "num_heads",
    "d_head": "head_dim",
    "d_inner": "intermediate_dim",
    "div_val": "division_factor",
    "mem_len": "memory_length",
    "tgt_len": "segment_length",
}
_FLOATS = {
    "dropout": "dropout",
    "dropatt": "attention_dropout",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "init_std": "initializer_stddev",
    "init_range": "initializer_range",
    "proj_init_std": "projection_stddev",
}
_BOOLEANS = {
    "same_length": "same_length",
    "pre_lnorm": "pre_norm",
    "tie_word_embeddings": "tie_weights",
}
# Types for `type(value) in`, because a bool is an instance of int.
_INT, _BOOL = (int,), (bool,)
# Other values define an unsupported model.
_ONLY = {"attn_type": 0, "ext_len": 0}


def from_hugging_face_config(config: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the `ModelConfig` fields that a parsed `config.json` determines.

    Raises MismatchError if a value has the wrong type or is not supported; other keys are ignored.
    """
    for name, only in _ONLY.items():
        if config.get(name, only) != only:
            raise MismatchError(
                f"The configuration has {name}={config[name]!r}; only {only} is supported.",
                where=where,
                remedy="Such a model cannot be loaded.",
            )
    fields: dict[str, Any] = {}
    for names, kinds in ((_INTEGERS, _INT), (_FLOATS, (int, float)), (_BOOLEANS, _BOOL)):
        for name, field in names.items():
            if config.get(name) is not None:
                fields[field] = _checked(config, name, kinds, where)
    if fields.get("division_factor", 1) != 1 and config.get("cutoffs") == []:
        del fields["division_factor"]  # a single cluster has no division
    clamp_length = config.get("clamp_len")
    if clamp_length is not None:
        clamp_length = _checked(config, "clamp_len", _INT, where)
        fields["clamp_length"] = clamp_length if clamp_length > 0 else None
    if config.get("untie_r") is not None:
        fields["share_attention_biases"] = not _checked(config, "untie_r", _BOOL, where)
    if config.get("cutoffs") is not None:
        fields["cutoffs"] = tuple(_checked(config, "cutoffs", _INT, where, is_list=True))
    fields |= _tied_projections(config, where)
    return fields


def to_hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """Builds the `config.json` of a model.

    Raises ValueError for an option that Hugging Face does not have.
    """
    _check_expressible(config)
    plain = config.to_dict()
    values = {name: plain[field] for name, field in (_INTEGERS | _FLOATS | _BOOLEANS).items()}
    share_tails = config.share_tail_projections
    return {
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "torch_dtype": "float32",
        **values,
        "d_embed": config.clusters.embedding_dim,
        "adaptive": True,
        "attn_type": 0,
        "clamp_len": config.clamp_length or -1,
        "cutoffs": list(config.cutoffs),
        "init": config.initializer,
        "proj_share_all_but_first": share_tails,
        "sample_softmax": -1,
        # Without clusters the embedding's projection is the only one.
        "tie_projs": [not config.cutoffs, *(share_tails for _ in config.cutoffs)],
        "untie_r": not config.share_attention_biases,
    }


def _check_expressible(config: ModelConfig) -> None:
    needed = {
        "position_encoding": "transformer_xl",
        "recurrence": True,
        "variational_dropout": False,
    }
    if config.same_length:
        needed["same_length_keys"] = "memory"
    if config.division_factor > 1 and config.hidden_dim in config.clusters.widths:
        needed["project_same_dim"] = True
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"Hugging Face's Transformer-XL is always as with `{name}={value!r}` here. "
                f"Received: {name}={getattr(config, name)!r}"
            )


def _tied_projections(config: dict[str, Any], where: str) -> dict[str, Any]:
    if config.get("tie_projs") is not None:
        tied = _checked(config, "tie_projs", _BOOL, where, is_list=True)
        return {"share_tail_projections": len(tied) > 1 and all(tied[1:])}
    if config.get("proj_share_all_but_first") is not None:
        shared = _checked(config, "proj_share_all_but_first", _BOOL, where)
        return {"share_tail_projections": shared and bool(config.get("cutoffs"))}
    return {}


def _checked(
    config: dict[str, Any],
    name: str,
    kinds: tuple[type, ...],
    where: str,
    *,
    is_list: bool = False,
) -> Any:
    values = config[name] if is_list else [config[name]]
    if not isinstance(values, list) or any(type(value) not in kinds for value in values):
        raise MismatchError(
            f"The configuration has {name}={str(config[name])[:80]!r}, which is of the wrong type.",
            where=where,
            remedy="Correct it, or give the file of tensors alone.",
        )
    return config[name]


_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "model.safetensors"
_CONFIG_REMEDY = "Restore it from a copy, or give the file of tensors alone."


def load_hugging_face(
    source: str | Path,
    *,
    dtype: str = "float32",
    origins: dict[str, str] | None = None,
    **what_shapes_cannot_tell: Any,
) -> TransformerXL:
    """Loads a model of Hugging Face's Transformers.

    Sizes are inferred from the tensors. Other settings come from the arguments, the `config.json`
    beside the tensors, or the published model of these sizes, in this order.

    Args:
        source: path of a folder, or of a file of tensors: `.safetensors`,
            `.npz` of a state dict, or a torch file where torch is installed; or
            the index of several. Nothing is unpickled.
        dtype: str. Dtype policy of the model.
        origins: optional dict. Filled with the origin of every field of the configuration: found,
            given or assumed.
        **what_shapes_cannot_tell: fields of `ModelConfig`. `memory_length` is required unless a
            `config.json` or a published model defines it.

    Raises:
        InputMissingError: If there is no such file.
        UsageError: If a package is missing.
        DataDamagedError: If it cannot be read, or a value is not finite.
        MismatchError: If a tensor is missing, unexpected or misshapen, sizes are contradictory, or
            the configuration is not supported. The attribute `differences` of an error about
            tensors lists all of them.
        ValueError: If a setting is not valid.
    """
    check_settings(what_shapes_cannot_tell)
    path = find_tensor_file(source)
    tensors, text = read_tensors(path)
    config_path = path.with_name(_CONFIG_FILE)
    stored = {}
    if text is not None:
        values = parse_json_object(text, where=str(path), remedy=_CONFIG_REMEDY)
        stored = from_hugging_face_config(values, str(path))
    elif os.path.lexists(config_path):
        stored = from_hugging_face_config(_read_config(config_path), str(config_path))
    return model_from_state_dict(
        tensors, HUGGING_FACE, stored, what_shapes_cannot_tell, str(path), dtype, origins
    )


def save_hugging_face(model: TransformerXL, folder: str | Path) -> Path:
    """Saves a model so that `TransfoXLLMHeadModel.from_pretrained` loads it.

    Args:
        model: `TransformerXL`.
        folder: path of the folder to create.

    Returns:
        The folder, with `config.json` and `model.safetensors`.

    Raises:
        ValueError: If the model has an option that Hugging Face does not have.
        OutputExistsError: If the folder exists; it is left alone.
        UsageError: If the package safetensors is not installed.
        StorageError: If the folder cannot be written.
    """
    config = to_hugging_face_config(model.config)
    folder = Path(folder)
    remedy = "Make room, or choose another folder."
    with (
        storage_errors("The model cannot be written", str(folder), remedy),
        StagingFolder(str(folder), last_file=_CONFIG_FILE) as staging,
    ):
        written = Path(staging.path)
        (written / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        write_safetensors(written / _WEIGHTS_FILE, hugging_face_tensors(model))
        # The package safetensors makes its files readable by the owner only.
        shutil.copymode(written / _CONFIG_FILE, written / _WEIGHTS_FILE)
        staging.publish()
    return folder


def hugging_face_tensors(model: TransformerXL) -> dict[str, np.ndarray]:
    """Returns the float32 state dict with Hugging Face's names, including tied copies."""
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
        what = f"The configuration beside the tensors cannot be read: {first_line(error)}"
        raise DataDamagedError(what, where=str(path), remedy=_CONFIG_REMEDY) from error
