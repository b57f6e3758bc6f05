"""Loader of checkpoints written by the official TensorFlow code.

Shape letters used in this module: L layers, V vocabulary, E embedding width, D hidden width, F
inner width, N heads, H head width.
"""

import itertools
import re
from pathlib import Path
from typing import Any

from txl_tf.config.model import ModelConfig
from txl_tf.convert.converted_config import (
    check_settings,
    count_numbered,
    merge_config,
    required_shape,
    vocabulary_sizes,
)
from txl_tf.convert.foreign_tensors import (
    ForeignTensor,
    joined_projections,
    model_from_tensors,
    numbered_names,
    tensor_of,
    uses_own_projection,
)
from txl_tf.convert.tensorflow_checkpoint import find_prefix, read_checkpoint
from txl_tf.models.transformer_xl import TransformerXL

# Names of the optimizer's state and of the step.
_IGNORED = re.compile(r"global_step|(.*/)?beta[12]_power(_\d+)?|.*/Adam(_\d+)?")

_EMBEDDING = "transformer/adaptive_embed"
_SOFTMAX = "transformer/adaptive_softmax"
_OF_A_BLOCK = {
    "rel_attn/r/kernel": "attention/position/kernel",
    "rel_attn/o/kernel": "attention/output/kernel",
    "rel_attn/LayerNorm/gamma": "attention_norm/gamma",
    "rel_attn/LayerNorm/beta": "attention_norm/beta",
    "ff/layer_1/kernel": "feed_forward/inner/kernel",
    "ff/layer_1/bias": "feed_forward/inner/bias",
    "ff/layer_2/kernel": "feed_forward/outer/kernel",
    "ff/layer_2/bias": "feed_forward/outer/bias",
    "ff/LayerNorm/gamma": "feed_forward_norm/gamma",
    "ff/LayerNorm/beta": "feed_forward_norm/beta",
}
_BIASES = {"transformer/r_w_bias": "content_bias", "transformer/r_r_bias": "position_bias"}


def official_tensorflow_table(config: ModelConfig) -> list[ForeignTensor]:
    """Returns the mapping of every tensor of a model's official TensorFlow checkpoint."""
    table = _vocabulary(config)
    for name, variable in _BIASES.items():
        each = tuple(f"block_{i}/attention/{variable}" for i in range(config.num_layers))
        tensor = ForeignTensor(name=name, variables=each, is_stacked=True)
        table.append(tensor_of(name, variable) if config.share_attention_biases else tensor)
    for index in range(config.num_layers):
        theirs, ours = f"transformer/layer_{index}", f"block_{index}"
        table.append(joined_projections(f"{theirs}/rel_attn/qkv/kernel", ours))
        for name, variable in _OF_A_BLOCK.items():
            table.append(tensor_of(f"{theirs}/{name}", f"{ours}/{variable}"))
    return table


def _vocabulary(config: ModelConfig) -> list[ForeignTensor]:
    clusters = config.clusters
    count = len(clusters.table_shapes)
    table = []
    for index, shape in enumerate(clusters.projection_shapes):
        folder = f"{_EMBEDDING}/cutoff_{index}" if count > 1 else _EMBEDDING
        table.append(
            tensor_of(f"{folder}/lookup_table", numbered_names("embedding/table", count)[index])
        )
        if shape is not None:
            table.append(
                tensor_of(f"{folder}/proj_W", numbered_names("embedding/projection", count)[index])
            )
    if not config.cutoffs:
        return [*table, tensor_of(f"{_SOFTMAX}/bias", "softmax/bias")]
    table.append(tensor_of(f"{_SOFTMAX}/cutoff_0/cluster_W", "softmax/cluster_weight"))
    table.append(tensor_of(f"{_SOFTMAX}/cutoff_0/cluster_b", "softmax/cluster_bias"))
    for index, shape in enumerate(clusters.output_projection_shapes):
        table.append(tensor_of(f"{_SOFTMAX}/cutoff_{index}/b", f"softmax/bias_{index}"))
        if shape is not None and uses_own_projection(config, index):
            table.append(
                tensor_of(f"{_SOFTMAX}/cutoff_{index}/proj", f"softmax/projection_{index}")
            )
    return table


_CONVENTIONS = {"layer_norm_epsilon": 1e-12, "same_length_keys": "memory_and_self"}


def load_official_tensorflow(
    checkpoint_prefix: str | Path,
    *,
    dtype: str = "float32",
    origins: dict[str, str] | None = None,
    **what_shapes_cannot_tell: Any,
) -> TransformerXL:
    """Loads a checkpoint of the official TensorFlow code.

    All sizes are inferred from the shapes. If there is a published model of these sizes, it also
    provides segment and memory length, `clamp_length`, `same_length` and dropout. The state of the
    optimizer is ignored.

    Args:
        checkpoint_prefix: path of the checkpoint without `.index`, or of a folder with one
            checkpoint.
        dtype: str. Dtype policy of the model.
        origins: optional dict, to which the origin of every field of the configuration is added:
            found, given or assumed.
        **what_shapes_cannot_tell: fields of `ModelConfig`. `memory_length` is required unless the
            sizes are published.

    Raises:
        InputMissingError: If there is no such checkpoint.
        DataDamagedError: If the checkpoint cannot be read, or a value is not finite.
        MismatchError: If a tensor is missing, unexpected or misshapen, or a setting contradicts the
            shapes. The attribute `differences` of the error lists all tensors.
        ValueError: If a setting is not valid.

    Example:
    ```python
    model = txl_tf.convert.load_official_tensorflow(
        "tf_wt103/model/model.ckpt-0", memory_length=640
    )
    ```
    """
    check_settings(what_shapes_cannot_tell)
    prefix = find_prefix(checkpoint_prefix)
    tensors = read_checkpoint(prefix, _IGNORED)
    sizes = _sizes({name: tensor.shape for name, tensor in tensors.items()}, prefix)
    config = merge_config(sizes, _CONVENTIONS, what_shapes_cannot_tell, {}, prefix, origins)
    table = official_tensorflow_table(config)
    return model_from_tensors(config, table, tensors, prefix, _IGNORED, dtype)


def _sizes(shapes: dict[str, tuple[int, ...]], where: str) -> dict[str, Any]:
    kernel = required_shape(shapes, "transformer/layer_0/ff/layer_1/kernel", 2, where)  # [D, F]
    has_shared_biases = len(shapes.get("transformer/r_w_bias", ())) == 2  # [N, H], or [L, N, H]
    bias = required_shape(shapes, "transformer/r_w_bias", 2 if has_shared_biases else 3, where)
    num_clusters = count_numbered(shapes, _SOFTMAX + r"/cutoff_(\d+)/")
    names, cutoffs = [f"{_EMBEDDING}/lookup_table"], None
    if count_numbered(shapes, _EMBEDDING + r"/cutoff_(\d+)/"):
        names = [f"{_EMBEDDING}/cutoff_{i}/lookup_table" for i in range(max(1, num_clusters))]
    elif num_clusters:
        biases = [f"{_SOFTMAX}/cutoff_{index}/b" for index in range(num_clusters - 1)]
        sizes = [required_shape(shapes, name, 1, where)[0] for name in biases]
        cutoffs = tuple(itertools.accumulate(sizes))
    tables = [required_shape(shapes, name, 2, where) for name in names]  # [V, E]
    widths = [width for _, width in tables]
    projects_same_dim = True
    if len(widths) > 1 and kernel[0] in widths:
        projects_same_dim = f"{_EMBEDDING}/cutoff_{widths.index(kernel[0])}/proj_W" in shapes
    tails = range(1, max(1, num_clusters))
    has_tail_projections = any(f"{_SOFTMAX}/cutoff_{index}/proj" in shapes for index in tails)
    return {
        "num_layers": count_numbered(shapes, r"transformer/layer_(\d+)/"),
        "hidden_dim": kernel[0],
        "intermediate_dim": kernel[1],
        "num_heads": bias[-2],
        "head_dim": bias[-1],
        "share_attention_biases": has_shared_biases,
        **vocabulary_sizes(tables, cutoffs, where),
        "project_same_dim": projects_same_dim,
        "share_tail_projections": num_clusters > 1 and not has_tail_projections,
        "tie_weights": True,
    }
