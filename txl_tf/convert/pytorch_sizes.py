"""Reads the sizes of a model off a PyTorch state dict.

Shape letters used in this module: N heads, H head width, D hidden width,
F inner width, C tail clusters.
"""

from typing import Any

import numpy as np

from txl_tf.convert.checkpoint_sizes import (
    count_numbered,
    cutoffs_of,
    division_factor_of,
    required_shape,
)
from txl_tf.convert.foreign_tensor import Shape
from txl_tf.convert.pytorch_names import output_weight
from txl_tf.convert.pytorch_system import PytorchSystem
from txl_tf.errors import MismatchError


def pytorch_sizes(
    tensors: dict[str, np.ndarray],
    system: PytorchSystem,
    cutoffs: tuple[int, ...] | None,
    where: str,
) -> dict[str, Any]:
    """Reads what the tensors tell.

    Args:
        tensors: dict of name to array.
        system: `PytorchSystem`.
        cutoffs: optional tuple of int, for a checkpoint whose clusters are
            rows of one table; it does not tell where they begin.
        where: str. The checkpoint, for messages.

    Returns:
        Dict of fields of `ModelConfig`.

    Raises:
        MismatchError: If a tensor that tells a size is missing or misshapen.
        ValueError: If `cutoffs` are needed.
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
    """Whether all tables of the softmax that are there equal the embedding's."""
    folder = f"{system.prefix}word_emb.emb_layers"
    count = count_numbered(tensors, _escaped(folder) + r"\.(\d+)\.weight")
    return all(
        _are_equal(tensors, output_weight(system, index), f"{folder}.{index}.weight")
        for index in range(count)
    )


def _tails_are_shared(tensors: dict[str, np.ndarray], system: PytorchSystem) -> bool:
    """Whether all projections of tails that are there equal the embedding's."""
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
