"""Parameter names and storage conventions of three PyTorch implementations.

PyTorch stores the kernel of a linear layer with the outputs first.
"""

import dataclasses
import re
from typing import Literal

from txl_tf.config.model import ModelConfig
from txl_tf.convert.foreign_tensors import ForeignTensor
from txl_tf.convert.model_building import numbered, uses_own_projection


@dataclasses.dataclass(frozen=True, kw_only=True)
class PytorchSystem:
    """Conventions of one implementation."""

    title: str
    """Name in messages."""
    prefix: str
    """Prefix of decoder names."""
    reverses_clusters: bool
    """True if the last cluster entry of the head belongs to the first tail."""
    lists_softmax: bool
    """True if the softmax has lists of parameters instead of linear layers."""
    same_length_keys: Literal["memory_and_self", "memory"]
    """Keys that a query sees with `same_length`."""


HUGGING_FACE = PytorchSystem(
    title="Hugging Face",
    prefix="transformer.",
    reverses_clusters=False,
    lists_softmax=False,
    same_length_keys="memory",
)
OFFICIAL_PYTORCH = PytorchSystem(
    title="the official PyTorch code",
    prefix="",
    reverses_clusters=True,
    lists_softmax=False,
    same_length_keys="memory",
)
NVIDIA_PYTORCH = PytorchSystem(
    title="NVIDIA's PyTorch code",
    prefix="",
    reverses_clusters=True,
    lists_softmax=True,
    same_length_keys="memory_and_self",
)

# Frequencies of the sinusoids, computed from the width.
IGNORED = re.compile(r"(transformer\.)?pos_emb\.inv_freq")

_KERNELS_OF_A_BLOCK = {
    "dec_attn.r_net.weight": "attention/position/kernel",
    "dec_attn.o_net.weight": "attention/output/kernel",
    "pos_ff.CoreNet.0.weight": "feed_forward/inner/kernel",
    "pos_ff.CoreNet.3.weight": "feed_forward/outer/kernel",
}
_VECTORS_OF_A_BLOCK = {
    "dec_attn.layer_norm.weight": "attention_norm/gamma",
    "dec_attn.layer_norm.bias": "attention_norm/beta",
    "pos_ff.CoreNet.0.bias": "feed_forward/inner/bias",
    "pos_ff.CoreNet.3.bias": "feed_forward/outer/bias",
    "pos_ff.layer_norm.weight": "feed_forward_norm/gamma",
    "pos_ff.layer_norm.bias": "feed_forward_norm/beta",
}
_BIASES = {"r_w_bias": "content_bias", "r_r_bias": "position_bias"}


def pytorch_table(config: ModelConfig, system: PytorchSystem) -> list[ForeignTensor]:
    """Returns the mapping of every tensor of a model's state dict."""
    table = _embedding(config, system) + _softmax(config, system)
    for index in range(config.num_layers):
        table += _block(f"{system.prefix}layers.{index}", f"block_{index}")
        table += _block_biases(config, system, index)
    if config.share_attention_biases:
        table += [_same(f"{system.prefix}{name}", ours) for name, ours in _BIASES.items()]
    return table


def output_weight(system: PytorchSystem, index: int) -> str:
    """Name of a softmax table, by its number."""
    if system.lists_softmax:
        return f"crit.out_layers_weights.{index}"
    return f"crit.out_layers.{index}.weight"


def output_bias(system: PytorchSystem, index: int) -> str:
    """Name of the softmax bias of a table, by its number."""
    if system.lists_softmax:
        return f"crit.out_layers_biases.{index}"
    return f"crit.out_layers.{index}.bias"


def _same(name: str, variable: str, *, is_copy: bool = False) -> ForeignTensor:
    return ForeignTensor(name=name, variables=(variable,), is_copy=is_copy)


def _transposed(name: str, variable: str, *, is_copy: bool = False) -> ForeignTensor:
    return ForeignTensor(name=name, variables=(variable,), is_transposed=True, is_copy=is_copy)


def _block(theirs: str, ours: str) -> list[ForeignTensor]:
    parts = ("query", "key", "value")
    joined = ForeignTensor(
        name=f"{theirs}.dec_attn.qkv_net.weight",
        variables=tuple(f"{ours}/attention/{part}/kernel" for part in parts),
        join="concatenate",
        axis=1,
        is_transposed=True,
    )
    kernels = [
        _transposed(f"{theirs}.{name}", f"{ours}/{variable}")
        for name, variable in _KERNELS_OF_A_BLOCK.items()
    ]
    vectors = [
        _same(f"{theirs}.{name}", f"{ours}/{variable}")
        for name, variable in _VECTORS_OF_A_BLOCK.items()
    ]
    return [joined, *kernels, *vectors]


def _block_biases(config: ModelConfig, system: PytorchSystem, index: int) -> list[ForeignTensor]:
    names = {f"{system.prefix}layers.{index}.dec_attn.{name}": _BIASES[name] for name in _BIASES}
    if not config.share_attention_biases:
        return [_same(name, f"block_{index}/attention/{ours}") for name, ours in names.items()]
    if system.prefix:  # Hugging Face also stores shared biases in every layer.
        return [_same(name, ours, is_copy=True) for name, ours in names.items()]
    return []


def _embedding(config: ModelConfig, system: PytorchSystem) -> list[ForeignTensor]:
    shapes = config.clusters.projection_shapes
    folder = f"{system.prefix}word_emb"
    table = [
        _same(f"{folder}.emb_layers.{index}.weight", name)
        for index, name in enumerate(numbered("embedding/table", len(shapes)))
    ]
    for index, name in enumerate(numbered("embedding/projection", len(shapes))):
        if shapes[index] is not None:
            table.append(_transposed(f"{folder}.emb_projs.{index}", name))
            if system.lists_softmax:
                table.append(_transposed(f"crit.shared_out_projs.{index}", name, is_copy=True))
    return table


def _softmax(config: ModelConfig, system: PytorchSystem) -> list[ForeignTensor]:
    clusters = config.clusters
    num_tables, num_clusters = len(clusters.table_shapes), len(clusters.sizes)
    layer = "embedding" if config.tie_weights else "softmax"
    table = [
        _same(output_weight(system, index), name, is_copy=config.tie_weights)
        for index, name in enumerate(numbered(f"{layer}/table", num_tables))
    ]
    biases = numbered("softmax/bias", num_clusters)
    if num_tables == 1 < num_clusters:
        # A single table for all clusters has a single bias.
        name = output_bias(system, 0)
        table.append(ForeignTensor(name=name, variables=tuple(biases), join="concatenate"))
    else:
        table += [_same(output_bias(system, index), name) for index, name in enumerate(biases)]
    table += _output_projections(config)
    if config.cutoffs:
        table += [
            ForeignTensor(
                name=f"crit.{name}",
                variables=(f"softmax/{name}",),
                is_reversed=system.reverses_clusters,
            )
            for name in ("cluster_weight", "cluster_bias")
        ]
    return table


def _output_projections(config: ModelConfig) -> list[ForeignTensor]:
    clusters = config.clusters
    shared = numbered("embedding/projection", len(clusters.table_shapes))
    table = []
    for index, shape in enumerate(clusters.output_projection_shapes):
        if shape is None:
            continue
        name = f"crit.out_projs.{index}"
        if uses_own_projection(config, index):
            table.append(_transposed(name, f"softmax/projection_{index}"))
        else:
            table.append(_transposed(name, shared[min(index, len(shared) - 1)], is_copy=True))
    return table
