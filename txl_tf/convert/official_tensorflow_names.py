"""The variables of the official TensorFlow code, and which of ours they are.

Shape letters used in this module: L layers.
"""

import re

from txl_tf.config.model_config import ModelConfig
from txl_tf.convert.foreign_tensor import ForeignTensor
from txl_tf.convert.variable_names import clusters_of, numbered, uses_own_projection

# State of the optimizer and the step, which are no weights.
IGNORED = re.compile(r"global_step|(.*/)?beta[12]_power(_\d+)?|.*/Adam(_\d+)?")

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
    """Every tensor of an official TensorFlow checkpoint of a model.

    Args:
        config: `ModelConfig`.

    Returns:
        List of `ForeignTensor`.
    """
    table = _embedding(config) + _softmax(config) + _attention_biases(config)
    for index in range(config.num_layers):
        theirs, ours = f"transformer/layer_{index}", f"block_{index}"
        parts = ("query", "key", "value")
        table.append(
            ForeignTensor(
                name=f"{theirs}/rel_attn/qkv/kernel",
                variables=tuple(f"{ours}/attention/{part}/kernel" for part in parts),
                join="concatenate",
                axis=1,
            )
        )
        table += [
            _same(f"{theirs}/{name}", f"{ours}/{variable}")
            for name, variable in _OF_A_BLOCK.items()
        ]
    return table


def _same(name: str, variable: str) -> ForeignTensor:
    return ForeignTensor(name=name, variables=(variable,))


def _embedding(config: ModelConfig) -> list[ForeignTensor]:
    clusters = clusters_of(config)
    count = len(clusters.table_shapes)
    folders = [f"{_EMBEDDING}/cutoff_{i}" for i in range(count)] if count > 1 else [_EMBEDDING]
    table = [
        _same(f"{folder}/lookup_table", name)
        for folder, name in zip(folders, numbered("embedding/table", count), strict=True)
    ]
    names = numbered("embedding/projection", count)
    for folder, name, shape in zip(folders, names, clusters.projection_shapes, strict=True):
        if shape is not None:
            table.append(_same(f"{folder}/proj_W", name))
    return table


def _softmax(config: ModelConfig) -> list[ForeignTensor]:
    if not config.cutoffs:
        return [_same(f"{_SOFTMAX}/bias", "softmax/bias")]
    table = [
        _same(f"{_SOFTMAX}/cutoff_0/cluster_W", "softmax/cluster_weight"),
        _same(f"{_SOFTMAX}/cutoff_0/cluster_b", "softmax/cluster_bias"),
    ]
    for index, shape in enumerate(clusters_of(config).output_projection_shapes):
        table.append(_same(f"{_SOFTMAX}/cutoff_{index}/b", f"softmax/bias_{index}"))
        if shape is not None and uses_own_projection(config, index):
            table.append(_same(f"{_SOFTMAX}/cutoff_{index}/proj", f"softmax/projection_{index}"))
    return table


def _attention_biases(config: ModelConfig) -> list[ForeignTensor]:
    if config.share_attention_biases:
        return [_same(name, variable) for name, variable in _BIASES.items()]
    return [
        ForeignTensor(
            name=name,
            variables=tuple(f"block_{i}/attention/{variable}" for i in range(config.num_layers)),
            join="stack",
        )
        for name, variable in _BIASES.items()
    ]
