"""Loaders of PyTorch state dicts from the official code and from NVIDIA.

Shape letters used in this module: N heads, H head width, D hidden width, F inner width, C tail
clusters.
"""

from pathlib import Path
from typing import Any

import numpy as np

from txl_tf.convert.foreign_tensors import Shape, find_tensor_file, read_tensors
from txl_tf.convert.model_building import model_from_tensors
from txl_tf.convert.model_sizes import (
    check_settings,
    config_from,
    count_numbered,
    cutoffs_of,
    division_factor_of,
    required_shape,
)
from txl_tf.convert.pytorch_names import (
    IGNORED,
    NVIDIA_PYTORCH,
    OFFICIAL_PYTORCH,
    PytorchSystem,
    output_weight,
    pytorch_table,
)
from txl_tf.errors import MismatchError
from txl_tf.models.transformer_xl import TransformerXL


def pytorch_sizes(
    tensors: dict[str, np.ndarray],
    system: PytorchSystem,
    cutoffs: tuple[int, ...] | None,
    where: str,
) -> dict[str, Any]:
    """Infers sizes from the tensors.

    Raises MismatchError if a tensor of a size is missing or misshapen, ValueError if `cutoffs` are
    needed.
    """
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    block = f"{system.prefix}layers.0"
    shared_name = f"{system.prefix}r_w_bias"
    has_shared_biases = shared_name in shapes
    bias_name = shared_name if has_shared_biases else f"{block}.dec_attn.r_w_bias"
    kernel = required_shape(shapes, f"{block}.pos_ff.CoreNet.0.weight", (2,), where)  # [F, D]
    biases = required_shape(shapes, bias_name, (2,), where)  # [N, H]
    return {
        "num_layers": count_numbered(shapes, _escaped(system.prefix) + r"layers\.(\d+)\."),
        "hidden_dim": kernel[1],
        "intermediate_dim": kernel[0],
        "num_heads": biases[0],
        "head_dim": biases[1],
        "share_attention_biases": has_shared_biases,
        "project_same_dim": True,
        **_vocabulary_sizes(shapes, system, cutoffs, where),
        "tie_weights": _are_tied(tensors, system),
        "share_tail_projections": _tails_are_shared(tensors, system),
    }


def _vocabulary_sizes(
    shapes: dict[str, Shape], system: PytorchSystem, cutoffs: tuple[int, ...] | None, where: str
) -> dict[str, Any]:
    folder = f"{system.prefix}word_emb.emb_layers"
    count = count_numbered(shapes, _escaped(folder) + r"\.(\d+)\.weight")
    tables = [
        required_shape(shapes, f"{folder}.{index}.weight", (2,), where)
        for index in range(max(1, count))
    ]
    num_tails = shapes["crit.cluster_bias"][0] if shapes.get("crit.cluster_bias") else 0
    if len(tables) > 1:
        cutoffs = cutoffs_of([rows for rows, _ in tables])
    elif num_tails and cutoffs is None:
        raise ValueError(
            f"`cutoffs` must be given, {num_tails} of them, because all clusters of this "
            "checkpoint are rows of one table. Received: cutoffs=None"
        )
    elif len(cutoffs or ()) != num_tails:
        raise MismatchError(
            f"The checkpoint has {num_tails} clusters of rare tokens, not {len(cutoffs or ())}.",
            where=where,
            remedy="Give one cutoff per cluster.",
        )
    widths = [width for _, width in tables]
    return {
        "vocabulary_size": sum(rows for rows, _ in tables),
        "cutoffs": tuple(cutoffs or ()),
        "embedding_dim": widths[0],
        "division_factor": division_factor_of(widths, where),
    }


def _are_tied(tensors: dict[str, np.ndarray], system: PytorchSystem) -> bool:
    """True if all existing softmax tables equal the embedding's."""
    folder = f"{system.prefix}word_emb.emb_layers"
    count = count_numbered(tensors, _escaped(folder) + r"\.(\d+)\.weight")
    return all(
        _are_equal(tensors, output_weight(system, index), f"{folder}.{index}.weight")
        for index in range(count)
    )


def _tails_are_shared(tensors: dict[str, np.ndarray], system: PytorchSystem) -> bool:
    """True if all existing tail projections equal the embedding's."""
    folder = f"{system.prefix}word_emb.emb_projs"
    count = count_numbered(tensors, _escaped(folder) + r"\.(\d+)")
    num_clusters = 1
    if "crit.cluster_bias" in tensors:
        num_clusters += tensors["crit.cluster_bias"].size
    return num_clusters > 1 and all(
        _are_equal(tensors, f"crit.out_projs.{index}", f"{folder}.{min(index, count - 1)}")
        for index in range(1, num_clusters)
    )


def _are_equal(tensors: dict[str, np.ndarray], copy: str, original: str) -> bool:
    if copy not in tensors or original not in tensors:
        return True
    return np.array_equal(tensors[copy], tensors[original])


def _escaped(name: str) -> str:
    return name.replace(".", r"\.")


_FIRST = ("emb_layers.0.weight", "emb_projs.0")
# Prefix in state dicts of models wrapped for several devices.
_WRAPPED = "module."


def model_from_state_dict(
    tensors: dict[str, np.ndarray],
    system: PytorchSystem,
    stored: dict[str, Any],
    settings: dict[str, Any],
    where: str,
    dtype: str,
    origins: dict[str, str] | None = None,
) -> TransformerXL:
    """Builds a model from a state dict and the fields `stored` in a file beside it.

    `origins` is filled with the origin of every field. Raises MismatchError if tensors or sizes do
    not fit, DataDamagedError if a value is not finite, ValueError if a setting is not valid.
    """
    if tensors and all(name.startswith(_WRAPPED) for name in tensors):
        tensors = {name.removeprefix(_WRAPPED): tensor for name, tensor in tensors.items()}
    if not any(name.startswith("crit.") for name in tensors):
        raise MismatchError(
            "The checkpoint has no softmax (`crit.*`): it is the body of a language model without "
            "its head, which cannot score or write text.",
            where=where,
            remedy="Save the whole model, such as TransfoXLLMHeadModel.",
        )
    tensors, stored = _without_projections_of_one_cluster(tensors, system, stored)
    cutoffs = settings.get("cutoffs", stored.get("cutoffs"))
    cutoffs = None if cutoffs is None else tuple(cutoffs)
    sizes = pytorch_sizes(tensors, system, cutoffs, where)
    # Tensors declared as tied are compared later, one by one.
    for name in ("tie_weights", "share_tail_projections"):
        sizes[name] = settings.get(name, stored.get(name, sizes[name]))
    defaults = {
        "layer_norm_epsilon": 1e-5,
        "same_length_keys": system.same_length_keys,
    }
    _check_stored(stored, sizes, where)
    config = config_from(sizes, defaults, settings, where, stored, origins)
    table = pytorch_table(config, system)
    return model_from_tensors(config, table, tensors, where, IGNORED, dtype)


def _without_projections_of_one_cluster(
    tensors: dict[str, np.ndarray], system: PytorchSystem, stored: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Multiplies tables by their projections if a model has one cluster and two projections.

    A `TransformerXL` without clusters has one projection for embedding and softmax. Two, or one
    between equal widths, become one table each of the hidden width.
    """
    table, projection = (f"{system.prefix}word_emb.{name}" for name in _FIRST)
    output, output_projection = output_weight(system, 0), "crit.out_projs.0"
    inner = tensors.get(projection)
    if inner is None or "crit.cluster_weight" in tensors or table not in tensors:
        return tensors, stored
    is_narrow = inner.ndim == 2 and inner.shape[0] != inner.shape[1]
    if is_narrow and _are_equal(tensors, output_projection, projection):
        return tensors, stored
    removed = (projection, output_projection)
    others = {name: tensor for name, tensor in tensors.items() if name not in removed}
    outer = tensors.get(output_projection, inner)
    others[output] = _product(tensors.get(output, tensors[table]), outer)
    others[table] = _product(tensors[table], inner)
    changed = {"embedding_dim": others[table].shape[-1], "tie_weights": False}
    return others, {**stored, **changed}


def _product(table: np.ndarray, projection: np.ndarray) -> np.ndarray:
    """Returns `[V, E]` times the transpose of `[D, E]`, rounded once."""
    return (table.astype(np.float64) @ projection.astype(np.float64).T).astype(np.float32)


def _check_stored(stored: dict[str, Any], sizes: dict[str, Any], where: str) -> None:
    try:
        config_from(sizes, {}, {"memory_length": 0, **stored}, where)
    except ValueError as error:
        raise MismatchError(
            f"The configuration beside the tensors is not valid: {error}",
            where=where,
            remedy="Correct it, or give the file of tensors alone.",
        ) from error


def load_official_pytorch(
    source: str | Path,
    *,
    dtype: str = "float32",
    origins: dict[str, str] | None = None,
    **what_shapes_cannot_tell: Any,
) -> TransformerXL:
    """Loads a state dict of the official PyTorch code.

    The code itself saves a whole module as `model.pt`, which cannot be read without running code.
    Save the state dict where the code is installed:
    `torch.save(torch.load("model.pt").state_dict(), "state.pt")`.

    Only `attn_type` 0 is supported. All layers share the attention biases, and `same_length` counts
    the query itself among the `M` keys.

    Args:
        source: path of a file of tensors (`.safetensors`, `.npz`, or a torch file if torch is
            installed), or of a folder with one such file.
        dtype: str. Dtype policy of the model.
        origins: optional dict. Filled with the origin of every field of the configuration: found,
            given or assumed.
        **what_shapes_cannot_tell: fields of `ModelConfig`. `memory_length` is required unless the
            sizes are published, `cutoffs` for `div_val` 1 with clusters, `pre_norm` for
            `pre_lnorm`.

    Raises:
        InputMissingError: If there is no such file, or a package is missing.
        DataDamagedError: If it cannot be read, or a value is not finite.
        MismatchError: If a tensor is missing, unexpected or misshapen, or a setting contradicts the
            shapes.
        ValueError: If a setting is not valid.
    """
    return _load(source, OFFICIAL_PYTORCH, what_shapes_cannot_tell, dtype, origins)


def load_nvidia_pytorch(
    source: str | Path,
    *,
    dtype: str = "float32",
    origins: dict[str, str] | None = None,
    **what_shapes_cannot_tell: Any,
) -> TransformerXL:
    """Loads a state dict of NVIDIA's PyTorch code (DeepLearningExamples).

    Its checkpoints contain custom objects beside the state dict. If such a file does not load, save
    `checkpoint["model_state"]` alone.

    Args:
        source: as in `load_official_pytorch`.
        dtype: str. Dtype policy of the model.
        origins: as in `load_official_pytorch`.
        **what_shapes_cannot_tell: as in `load_official_pytorch`.

    Raises:
        JobError, ValueError: See `load_official_pytorch`.
    """
    return _load(source, NVIDIA_PYTORCH, what_shapes_cannot_tell, dtype, origins)


def _load(
    source: str | Path,
    system: PytorchSystem,
    settings: dict[str, Any],
    dtype: str,
    origins: dict[str, str] | None,
) -> TransformerXL:
    check_settings(settings)
    path = find_tensor_file(source)
    tensors, _ = read_tensors(path)
    return model_from_state_dict(tensors, system, {}, settings, str(path), dtype, origins)
