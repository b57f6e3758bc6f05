"""Loads checkpoints of the official TensorFlow code.

Shape letters used in this module: V vocabulary, E embedding width, D hidden
width, F inner width, L layers, N heads, H head width.
"""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from txl_tf.convert.checked_tensors import model_from_tensors
from txl_tf.convert.checkpoint_sizes import (
    check_settings,
    config_from,
    count_numbered,
    cutoffs_of,
    division_factor_of,
    required_shape,
)
from txl_tf.convert.foreign_tensor import Shape
from txl_tf.convert.official_tensorflow_names import IGNORED, official_tensorflow_table
from txl_tf.errors import DataDamagedError, InputMissingError
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.tensor_bundle import checked_tensor_bundle

_EMBEDDING = "transformer/adaptive_embed"
_SOFTMAX = "transformer/adaptive_softmax"
_CONVENTIONS = {"layer_norm_epsilon": 1e-12, "same_length_keys": "memory_and_self"}
_INDEX = ".index"


def load_official_tensorflow(
    checkpoint_prefix: str | Path, *, dtype: str = "float32", **what_shapes_cannot_tell: Any
) -> TransformerXL:
    """Loads a checkpoint that the official TensorFlow code wrote.

    All sizes are read off the shapes. What they do not tell is taken from the
    published model of these sizes, if there is one: segment and memory length,
    `clamp_length`, `same_length` and dropout, as it was evaluated with. The
    state of the optimizer is passed over.

    Args:
        checkpoint_prefix: path of the checkpoint without `.index`, or of a
            folder with one checkpoint.
        dtype: str. Dtype policy of the model.
        **what_shapes_cannot_tell: fields of `ModelConfig`. `memory_length` is
            needed for a model of no published size.

    Returns:
        The model.

    Raises:
        InputMissingError: If there is no such checkpoint.
        DataDamagedError: If it cannot be read, or a value is not finite.
        MismatchError: If a tensor is missing, surplus or misshapen, or a
            setting contradicts the shapes. The attribute `differences` of the
            error lists all tensors.
        ValueError: If a setting is not valid.

    Example:
    ```python
    model = txl_tf.convert.load_official_tensorflow(
        "tf_wt103/model/model.ckpt-0", memory_length=640
    )
    ```
    """
    check_settings(what_shapes_cannot_tell)
    prefix = _prefix(Path(checkpoint_prefix))
    tensors = _read(prefix)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    sizes = _sizes(shapes, str(prefix))
    config = config_from(sizes, _CONVENTIONS, what_shapes_cannot_tell, str(prefix))
    table = official_tensorflow_table(config)
    return model_from_tensors(config, table, tensors, str(prefix), IGNORED, dtype)


def _prefix(path: Path) -> Path:
    if path.name.endswith(_INDEX):
        path = path.with_name(path.name.removesuffix(_INDEX))
    if not path.is_dir():
        found = [path] if path.with_name(path.name + _INDEX).is_file() else []
    else:
        found = [each.with_suffix("") for each in sorted(path.glob(f"*{_INDEX}"))]
    if len(found) != 1:
        raise InputMissingError(
            f"There are {len(found)} checkpoints here."
            if found
            else "There is no checkpoint here.",
            where=str(path),
            remedy="Give the path of a file that ends in .index, without this ending.",
        )
    return found[0]


def _read(prefix: Path) -> dict[str, np.ndarray]:
    try:
        stored = checked_tensor_bundle(str(prefix), remedy="Restore it from a copy.")
        reader = tf.compat.v1.train.NewCheckpointReader(str(prefix))
        return {
            name: np.asarray(reader.get_tensor(name))
            for name in sorted(stored)
            if not IGNORED.fullmatch(name)
        }
    except (OSError, tf.errors.OpError, LookupError, RuntimeError, ValueError) as error:
        raise DataDamagedError(
            f"The checkpoint cannot be read: {(str(error).splitlines() or ['unknown'])[0][:200]}",
            where=str(prefix),
            remedy="Restore it from a copy.",
        ) from error


def _sizes(shapes: dict[str, Shape], where: str) -> dict[str, Any]:
    biases = required_shape(shapes, "transformer/r_w_bias", (2, 3), where)  # [L, N, H] or [N, H]
    kernel = required_shape(shapes, "transformer/layer_0/ff/layer_1/kernel", (2,), where)
    return {
        "num_layers": count_numbered(shapes, r"transformer/layer_(\d+)/"),
        "hidden_dim": kernel[0],
        "intermediate_dim": kernel[1],
        "num_heads": biases[-2],
        "head_dim": biases[-1],
        "share_attention_biases": len(biases) == 2,
        **_vocabulary_sizes(shapes, kernel[0], where),
    }


def _vocabulary_sizes(shapes: dict[str, Shape], hidden_dim: int, where: str) -> dict[str, Any]:
    num_clusters = count_numbered(shapes, _SOFTMAX + r"/cutoff_(\d+)/")
    if count_numbered(shapes, _EMBEDDING + r"/cutoff_(\d+)/"):
        tables = [
            required_shape(shapes, f"{_EMBEDDING}/cutoff_{index}/lookup_table", (2,), where)
            for index in range(max(1, num_clusters))
        ]
    else:
        tables = [required_shape(shapes, f"{_EMBEDDING}/lookup_table", (2,), where)]  # [V, E]
    if len(tables) > 1:
        cluster_sizes = [table[0] for table in tables]
    elif num_clusters:
        cluster_sizes = [
            required_shape(shapes, f"{_SOFTMAX}/cutoff_{index}/b", (1,), where)[0]
            for index in range(num_clusters)
        ]
    else:
        cluster_sizes = [tables[0][0]]
    widths = [table[1] for table in tables]
    tails = range(1, max(1, num_clusters))
    has_tail_projections = any(f"{_SOFTMAX}/cutoff_{index}/proj" in shapes for index in tails)
    return {
        "vocabulary_size": sum(table[0] for table in tables),
        "cutoffs": cutoffs_of(cluster_sizes),
        "embedding_dim": widths[0],
        "division_factor": division_factor_of(widths, where),
        "project_same_dim": _projects_same_dim(shapes, widths, hidden_dim),
        "share_tail_projections": num_clusters > 1 and not has_tail_projections,
        "tie_weights": True,
    }


def _projects_same_dim(shapes: dict[str, Shape], widths: list[int], hidden_dim: int) -> bool:
    if len(widths) == 1 or hidden_dim not in widths:
        return True
    return f"{_EMBEDDING}/cutoff_{widths.index(hidden_dim)}/proj_W" in shapes
