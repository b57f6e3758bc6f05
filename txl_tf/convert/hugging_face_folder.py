"""Folders of Hugging Face's Transformers: reading their configuration, and saving a model."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from txl_tf.config.model import ModelConfig
from txl_tf.convert.pytorch_systems import HUGGING_FACE, pytorch_table
from txl_tf.convert.tensor_files import write_safetensors
from txl_tf.errors import MismatchError, storage_errors
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.strict_json import read_json_object

_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "model.safetensors"
_VOCABULARY_FILE = "vocab.txt"
# Names in Hugging Face's configuration, and fields of `ModelConfig` with the same values.
# `stored_fields` reads the other fields, and `_hugging_face_config` writes them.
_FIELDS = {
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
    "dropout": "dropout",
    "dropatt": "attention_dropout",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "init_std": "initializer_stddev",
    "init_range": "initializer_range",
    "proj_init_std": "projection_stddev",
    "same_length": "same_length",
    "pre_lnorm": "pre_norm",
    "tie_word_embeddings": "tie_weights",
    "cutoffs": "cutoffs",
}
# A model with other values is not supported.
_SUPPORTED_VALUES = {"attn_type": 0, "ext_len": 0}
_NO_CLAMP = -1


def stored_fields(path: Path) -> dict[str, Any]:
    """Returns the `ModelConfig` fields of the configuration beside a file of tensors, if any.

    Raises MismatchError if the model is not supported, and DataDamagedError for a damaged file.
    """
    config_path = str(path.with_name(_CONFIG_FILE))
    if not os.path.lexists(config_path):
        return {}
    with storage_errors("The configuration beside the tensors cannot be read", config_path):
        config = read_json_object(
            config_path,
            remedy="Restore the configuration, or give the tensors in a folder without one.",
        )
    for name, only_value in _SUPPORTED_VALUES.items():
        if config.get(name, only_value) != only_value:
            raise MismatchError(
                f"The configuration has {name}={config[name]!r}; only {only_value} is supported.",
                where=str(path),
                remedy="Such a model cannot be loaded.",
            )
    values = {name: value for name, value in config.items() if value is not None}
    fields = {field: values[name] for name, field in _FIELDS.items() if name in values}
    if values.get("cutoffs") == []:
        fields.pop("division_factor", None)  # a single cluster has no division
    if "clamp_len" in values:
        is_clamped = values["clamp_len"] not in (0, _NO_CLAMP)
        fields["clamp_length"] = values["clamp_len"] if is_clamped else None
    if "untie_r" in values:
        fields["share_attention_biases"] = not values["untie_r"]
    if isinstance(ties := values.get("tie_projs"), list):
        fields["share_tail_projections"] = len(ties) > 1 and all(ties[1:])
    elif "proj_share_all_but_first" in values:
        fields["share_tail_projections"] = bool(
            values["proj_share_all_but_first"] and values.get("cutoffs")
        )
    return fields


def save_hugging_face(model: TransformerXL, folder: str | Path, words: Sequence[str] = ()) -> Path:
    """Saves a model so that `TransfoXLLMHeadModel.from_pretrained` loads it.

    Args:
        model: `TransformerXL`.
        folder: path of the folder to create.
        words: optional sequence of str. The words in the order of their ids, for
            `TransfoXLTokenizer`.

    Returns:
        The folder, with `config.json`, `model.safetensors` and, if there are words, `vocab.txt`.

    Raises:
        ValueError: If the model has an option that Hugging Face does not have.
        OutputExistsError: If the folder exists; it is not changed.
        UsageError: If the package safetensors is not installed.
        StorageError: If the folder cannot be written.
    """
    config = _hugging_face_config(model.config)
    folder = Path(folder)
    with (
        storage_errors(
            "The model cannot be written",
            str(folder),
            "Check free space and permissions, or choose another folder.",
        ),
        StagingFolder(str(folder), last_file=_CONFIG_FILE) as staging,
    ):
        new_folder = Path(staging.path)
        (new_folder / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        write_safetensors(new_folder / _WEIGHTS_FILE, hugging_face_tensors(model))
        if words:
            (new_folder / _VOCABULARY_FILE).write_text(
                "".join(f"{word}\n" for word in words), "utf-8"
            )
        # The package safetensors makes its files readable by the owner only.
        shutil.copymode(new_folder / _CONFIG_FILE, new_folder / _WEIGHTS_FILE)
        staging.publish()
    return folder


def hugging_face_tensors(model: TransformerXL) -> dict[str, np.ndarray]:
    """Returns the float32 state dict with Hugging Face's names, which includes tied copies."""
    arrays = {
        variable.path: np.asarray(variable.numpy(), dtype=np.float32) for variable in model.weights
    }
    table = pytorch_table(model.config, HUGGING_FACE)
    tensors = {entry.name: entry.to_theirs(arrays) for entry in table}
    exponents = np.arange(0.0, model.config.hidden_dim, 2.0) / model.config.hidden_dim
    tensors["transformer.pos_emb.inv_freq"] = (10000.0**-exponents).astype(np.float32)
    return tensors


def _hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """Returns the content of `config.json`; raises ValueError for an option that it lacks."""
    requirements: dict[str, Any] = {
        "position_encoding": "transformer_xl",
        "recurrence": True,
        "variational_dropout": False,
        "residual_gate": None,
    }
    if config.same_length:
        requirements["same_length_keys"] = "memory"
    if config.division_factor > 1 and config.hidden_dim in config.clusters.widths:
        requirements["project_same_dim"] = True
    for name, value in requirements.items():
        if getattr(config, name) != value:
            config.refuse(f"`{name}` must be {value!r} for Hugging Face's Transformer-XL.", name)
    plain = config.to_dict()
    share_tails = config.share_tail_projections
    return {
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "torch_dtype": "float32",
        **{name: plain[field] for name, field in _FIELDS.items()},
        "d_embed": config.clusters.embedding_dim,
        "adaptive": True,
        "attn_type": 0,
        "clamp_len": config.clamp_length or _NO_CLAMP,
        "init": config.initializer,
        "proj_share_all_but_first": share_tails,
        "sample_softmax": -1,
        # Without clusters the embedding's projection is the only one.
        "tie_projs": [not config.cutoffs, *(share_tails for _ in config.cutoffs)],
        "untie_r": not config.share_attention_biases,
    }
