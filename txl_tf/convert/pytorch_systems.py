"""State dicts of three PyTorch implementations: the official code, NVIDIA's and Hugging Face's.

PyTorch stores the kernel of a linear layer with the outputs first.

Shape letters used in this module: N heads, H head width, D hidden width, E embedding width, F
inner width, V vocabulary.
"""

import dataclasses
import re
from typing import Any, Literal

import numpy as np

from txl_tf.config.model import ModelConfig
from txl_tf.convert.converted_config import count_numbered, required_shape, vocabulary_sizes
from txl_tf.convert.foreign_tensors import (
    ForeignTensor,
    joined_projections,
    numbered_names,
    tensor_of,
    uses_own_projection,
)
from txl_tf.errors import MismatchError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PytorchSystem:
    """Names and conventions of one PyTorch implementation."""

    prefix: str
    """Prefix of all names outside the softmax."""
    reverses_clusters: bool
    """True if the last entry for a cluster in the head belongs to the first tail."""
    lists_softmax: bool
    """True if the softmax has lists of parameters instead of linear layers."""
    same_length_keys: Literal["memory_and_self", "memory"]
    """Keys that a query sees with `same_length`, see `ModelConfig`."""

    def output_name(self, kind: Literal["weight", "bias"], index: int) -> str:
        """Returns the name of a table or of a bias of the softmax, by its number."""
        if self.lists_softmax:
            return f"crit.out_layers_{'weights' if kind == 'weight' else 'biases'}.{index}"
        return f"crit.out_layers.{index}.{kind}"

    def count(self, names: dict[str, Any], folder: str) -> int:
        """Counts the layers, tables or projections whose names begin with a folder."""
        return count_numbered(names, re.escape(f"{self.prefix}{folder}") + r"\.(\d+)\b")


HUGGING_FACE = PytorchSystem(
    prefix="transformer.",
    reverses_clusters=False,
    lists_softmax=False,
    same_length_keys="memory",
)
OFFICIAL_PYTORCH = PytorchSystem(
    prefix="", reverses_clusters=True, lists_softmax=False, same_length_keys="memory"
)
NVIDIA_PYTORCH = PytorchSystem(
    prefix="", reverses_clusters=True, lists_softmax=True, same_length_keys="memory_and_self"
)

# The frequencies of the sinusoids are no weights: the width determines them.
IGNORED_TENSORS = re.compile(r"(transformer\.)?pos_emb\.inv_freq")
EMBEDDING_TABLES, EMBEDDING_PROJECTIONS = "word_emb.emb_layers", "word_emb.emb_projs"

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
        theirs, ours = f"{system.prefix}layers.{index}", f"block_{index}"
        table.append(
            joined_projections(f"{theirs}.dec_attn.qkv_net.weight", ours, is_transposed=True)
        )
        for name, variable in _KERNELS_OF_A_BLOCK.items():
            table.append(tensor_of(f"{theirs}.{name}", f"{ours}/{variable}", is_transposed=True))
        for name, variable in _VECTORS_OF_A_BLOCK.items():
            table.append(tensor_of(f"{theirs}.{name}", f"{ours}/{variable}"))
        for name, variable in _BIASES.items():
            if not config.share_attention_biases:
                table.append(tensor_of(f"{theirs}.dec_attn.{name}", f"{ours}/attention/{variable}"))
            elif system.prefix:  # Hugging Face also stores shared biases in every layer.
                table.append(tensor_of(f"{theirs}.dec_attn.{name}", variable, is_copy=True))
    if config.share_attention_biases:
        table += [tensor_of(f"{system.prefix}{name}", ours) for name, ours in _BIASES.items()]
    return table


def _embedding(config: ModelConfig, system: PytorchSystem) -> list[ForeignTensor]:
    shapes = config.clusters.projection_shapes
    table = [
        tensor_of(f"{system.prefix}{EMBEDDING_TABLES}.{index}.weight", name)
        for index, name in enumerate(numbered_names("embedding/table", len(shapes)))
    ]
    for index, name in enumerate(numbered_names("embedding/projection", len(shapes))):
        if shapes[index] is not None:
            table.append(
                tensor_of(
                    f"{system.prefix}{EMBEDDING_PROJECTIONS}.{index}", name, is_transposed=True
                )
            )
            if system.lists_softmax:
                table.append(
                    tensor_of(
                        f"crit.shared_out_projs.{index}", name, is_copy=True, is_transposed=True
                    )
                )
    return table


def _softmax(config: ModelConfig, system: PytorchSystem) -> list[ForeignTensor]:
    clusters = config.clusters
    num_tables, num_clusters = len(clusters.table_shapes), len(clusters.sizes)
    layer = "embedding" if config.tie_weights else "softmax"
    table = [
        tensor_of(system.output_name("weight", index), name, is_copy=config.tie_weights)
        for index, name in enumerate(numbered_names(f"{layer}/table", num_tables))
    ]
    biases = numbered_names("softmax/bias", num_clusters)
    if num_tables == 1 < num_clusters:
        # A single table for all clusters has a single bias.
        table.append(ForeignTensor(name=system.output_name("bias", 0), variables=tuple(biases)))
    else:
        table += [tensor_of(system.output_name("bias", i), name) for i, name in enumerate(biases)]
    table_names = numbered_names("embedding/projection", num_tables)
    for index, shape in enumerate(clusters.output_projection_shapes):
        if shape is None:
            continue
        name, is_own = f"crit.out_projs.{index}", uses_own_projection(config, index)
        ours = f"softmax/projection_{index}" if is_own else table_names[min(index, num_tables - 1)]
        table.append(tensor_of(name, ours, is_copy=not is_own, is_transposed=True))
    for name in ("cluster_weight", "cluster_bias") if config.cutoffs else ():
        table.append(
            tensor_of(f"crit.{name}", f"softmax/{name}", is_reversed=system.reverses_clusters)
        )
    return table


def sizes_of_tensors(
    tensors: dict[str, np.ndarray],
    system: PytorchSystem,
    cutoffs: tuple[int, ...] | None,
    where: str,
) -> dict[str, Any]:
    """Infers the sizes of a model from its tensors.

    Raises ValueError if a single table hides its `cutoffs` and they are None, and MismatchError if
    they do not fit the tensors.
    """
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    block, bias = f"{system.prefix}layers.0", f"{system.prefix}r_w_bias"
    has_shared_biases = bias in shapes
    kernel = required_shape(shapes, f"{block}.pos_ff.CoreNet.0.weight", 2, where)  # [F, D]
    bias = bias if has_shared_biases else f"{block}.dec_attn.r_w_bias"
    num_heads, head_dim = required_shape(shapes, bias, 2, where)  # [N, H]
    names = [
        f"{EMBEDDING_TABLES}.{i}.weight"
        for i in range(max(1, system.count(tensors, EMBEDDING_TABLES)))
    ]
    tables = [required_shape(shapes, f"{system.prefix}{name}", 2, where) for name in names]
    num_tails = shapes["crit.cluster_bias"][0] if shapes.get("crit.cluster_bias") else 0
    if len(tables) == 1:
        if num_tails and cutoffs is None:
            raise ValueError(
                f"`cutoffs` must have {num_tails} entries: this checkpoint has one table for all "
                "tokens, which does not show them. Received: cutoffs=None"
            )
        if (num_cutoffs := len(cutoffs or ())) != num_tails:
            raise MismatchError(
                f"`cutoffs` must have {num_tails} entries for this checkpoint, not {num_cutoffs}.",
                where=where,
                remedy="Give one cutoff per cluster.",
            )
    num_projections = system.count(tensors, EMBEDDING_PROJECTIONS)
    return {
        "num_layers": system.count(tensors, "layers"),
        "hidden_dim": kernel[1],
        "intermediate_dim": kernel[0],
        "num_heads": num_heads,
        "head_dim": head_dim,
        "share_attention_biases": has_shared_biases,
        "project_same_dim": True,
        **vocabulary_sizes(tables, cutoffs, where),
        "tie_weights": all(
            _are_equal(tensors, system.output_name("weight", i), f"{system.prefix}{name}")
            for i, name in enumerate(names)
        ),
        "share_tail_projections": num_tails > 0
        and all(
            _are_equal(
                tensors,
                f"crit.out_projs.{index}",
                f"{system.prefix}{EMBEDDING_PROJECTIONS}.{min(index, num_projections - 1)}",
            )
            for index in range(1, num_tails + 1)
        ),
    }


def _are_equal(tensors: dict[str, np.ndarray], copy: str, original: str) -> bool:
    """True if a copy equals its original, or if the checkpoint lacks one of them."""
    both = copy in tensors and original in tensors
    return not both or np.array_equal(tensors[copy], tensors[original])
