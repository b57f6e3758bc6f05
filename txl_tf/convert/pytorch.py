"""Models of three PyTorch implementations: the official code, NVIDIA's and Hugging Face's.

PyTorch stores the kernel of a linear layer with the outputs first.

Shape letters used in this module: N heads, H head width, D hidden width, E embedding width, F
inner width, V vocabulary.
"""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from txl_tf.config.model import ModelConfig
from txl_tf.convert.model_sizes import (
    check_settings,
    config_from,
    count_numbered,
    required_shape,
    vocabulary_sizes,
)
from txl_tf.convert.tensors import (
    ForeignTensor,
    find_tensor_file,
    joined_projections,
    model_from_tensors,
    numbered,
    read_tensors,
    same,
    uses_own_projection,
    write_safetensors,
)
from txl_tf.errors import MismatchError, storage_errors
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.storage.staging import StagingFolder
from txl_tf.storage.strict_json import read_json_object


@dataclasses.dataclass(frozen=True, kw_only=True)
class PytorchSystem:
    """Names and conventions of one implementation."""

    prefix: str
    """Prefix of decoder names."""
    reverses_clusters: bool
    """True if the last cluster entry of the head belongs to the first tail."""
    lists_softmax: bool
    """True if the softmax has lists of parameters instead of linear layers."""
    same_length_keys: Literal["memory_and_self", "memory"]
    """Keys that a query sees with `same_length`."""

    def output_name(self, kind: Literal["weight", "bias"], index: int) -> str:
        """Returns the name of a table of the softmax, or of its bias, by its number."""
        if self.lists_softmax:
            return f"crit.out_layers_{'weights' if kind == 'weight' else 'biases'}.{index}"
        return f"crit.out_layers.{index}.{kind}"

    def count(self, names: dict[str, Any], folder: str) -> int:
        """Counts the layers, tables or projections below a name."""
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

# Frequencies of the sinusoids, computed from the width.
_IGNORED = re.compile(r"(transformer\.)?pos_emb\.inv_freq")
_TABLES, _PROJECTIONS = "word_emb.emb_layers", "word_emb.emb_projs"

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
        name = f"{theirs}.dec_attn.qkv_net.weight"
        table.append(joined_projections(name, ours, is_transposed=True))
        for name, variable in _KERNELS_OF_A_BLOCK.items():
            table.append(_transposed(f"{theirs}.{name}", f"{ours}/{variable}"))
        for name, variable in _VECTORS_OF_A_BLOCK.items():
            table.append(same(f"{theirs}.{name}", f"{ours}/{variable}"))
        for name, variable in _BIASES.items():
            if not config.share_attention_biases:
                table.append(same(f"{theirs}.dec_attn.{name}", f"{ours}/attention/{variable}"))
            elif system.prefix:  # Hugging Face also stores shared biases in every layer.
                table.append(same(f"{theirs}.dec_attn.{name}", variable, is_copy=True))
    if config.share_attention_biases:
        table += [same(f"{system.prefix}{name}", ours) for name, ours in _BIASES.items()]
    return table


def _transposed(name: str, variable: str, *, is_copy: bool = False) -> ForeignTensor:
    return dataclasses.replace(same(name, variable, is_copy=is_copy), is_transposed=True)


def _embedding(config: ModelConfig, system: PytorchSystem) -> list[ForeignTensor]:
    shapes = config.clusters.projection_shapes
    table = [
        same(f"{system.prefix}{_TABLES}.{index}.weight", name)
        for index, name in enumerate(numbered("embedding/table", len(shapes)))
    ]
    for index, name in enumerate(numbered("embedding/projection", len(shapes))):
        if shapes[index] is not None:
            table.append(_transposed(f"{system.prefix}{_PROJECTIONS}.{index}", name))
            if system.lists_softmax:
                table.append(_transposed(f"crit.shared_out_projs.{index}", name, is_copy=True))
    return table


def _softmax(config: ModelConfig, system: PytorchSystem) -> list[ForeignTensor]:
    clusters = config.clusters
    num_tables, num_clusters = len(clusters.table_shapes), len(clusters.sizes)
    layer = "embedding" if config.tie_weights else "softmax"
    table = [
        same(system.output_name("weight", index), name, is_copy=config.tie_weights)
        for index, name in enumerate(numbered(f"{layer}/table", num_tables))
    ]
    biases = numbered("softmax/bias", num_clusters)
    if num_tables == 1 < num_clusters:
        # A single table for all clusters has a single bias.
        name = system.output_name("bias", 0)
        table.append(ForeignTensor(name=name, variables=tuple(biases), join="concatenate"))
    else:
        table += [same(system.output_name("bias", i), name) for i, name in enumerate(biases)]
    shared = numbered("embedding/projection", num_tables)
    for index, shape in enumerate(clusters.output_projection_shapes):
        if shape is None:
            continue
        name, is_own = f"crit.out_projs.{index}", uses_own_projection(config, index)
        ours = f"softmax/projection_{index}" if is_own else shared[min(index, num_tables - 1)]
        table.append(_transposed(name, ours, is_copy=not is_own))
    for name in ("cluster_weight", "cluster_bias") if config.cutoffs else ():
        entry = same(f"crit.{name}", f"softmax/{name}")
        table.append(dataclasses.replace(entry, is_reversed=system.reverses_clusters))
    return table


def _sizes(
    tensors: dict[str, np.ndarray],
    system: PytorchSystem,
    cutoffs: tuple[int, ...] | None,
    where: str,
) -> dict[str, Any]:
    """Infers sizes from the tensors; ValueError if `cutoffs` are needed and not given."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    block, bias = f"{system.prefix}layers.0", f"{system.prefix}r_w_bias"
    has_shared_biases = bias in shapes
    kernel = required_shape(shapes, f"{block}.pos_ff.CoreNet.0.weight", 2, where)  # [F, D]
    bias = bias if has_shared_biases else f"{block}.dec_attn.r_w_bias"
    num_heads, head_dim = required_shape(shapes, bias, 2, where)  # [N, H]
    names = [f"{_TABLES}.{i}.weight" for i in range(max(1, system.count(tensors, _TABLES)))]
    tables = [required_shape(shapes, f"{system.prefix}{name}", 2, where) for name in names]
    num_tails = shapes["crit.cluster_bias"][0] if shapes.get("crit.cluster_bias") else 0
    if len(tables) == 1:
        if num_tails and cutoffs is None:
            raise ValueError(
                f"`cutoffs` must have {num_tails} entries: this checkpoint has one table for all "
                "tokens, which does not show them. Received: cutoffs=None"
            )
        if (given := len(cutoffs or ())) != num_tails:
            raise MismatchError(
                f"`cutoffs` must have {num_tails} entries for this checkpoint, not {given}.",
                where=where,
                remedy="Give one cutoff per cluster.",
            )
    num_projections = system.count(tensors, _PROJECTIONS)
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
                f"{system.prefix}{_PROJECTIONS}.{min(index, num_projections - 1)}",
            )
            for index in range(1, num_tails + 1)
        ),
    }


def _are_equal(tensors: dict[str, np.ndarray], copy: str, original: str) -> bool:
    """True also if one of them is left out."""
    both = copy in tensors and original in tensors
    return not both or np.array_equal(tensors[copy], tensors[original])


# Prefix in state dicts of models wrapped for several devices.
_WRAPPED = "module."


def _load(
    source: str | Path,
    system: PytorchSystem,
    settings: dict[str, Any],
    dtype: str,
    origins: dict[str, str] | None,
) -> TransformerXL:
    """Builds a model from a file of tensors and Hugging Face's configuration beside it."""
    check_settings(settings)
    path = find_tensor_file(source)
    where = str(path)
    tensors = read_tensors(path)
    stored = _stored_fields(path) if system is HUGGING_FACE else {}
    if tensors and all(name.startswith(_WRAPPED) for name in tensors):
        tensors = {name.removeprefix(_WRAPPED): tensor for name, tensor in tensors.items()}
    names = [name.removeprefix(system.prefix) for name in tensors]
    if not any(name.startswith(("word_emb.", "crit.")) for name in names):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise MismatchError(
            f"The tensors are of another implementation. Looked for: {system.prefix}{_TABLES}.0."
            f"weight, crit.*. Found: {', '.join([*tensors][:3])}{more}.",
            where=where,
            remedy="Choose another --from, or rename the tensors.",
        )
    if not any(name.startswith("crit.") for name in tensors):
        raise MismatchError(
            "The checkpoint has no softmax (`crit.*`): it is the body of a language model without "
            "its head, which cannot score or write text.",
            where=where,
            remedy="Save the whole model, such as TransfoXLLMHeadModel.",
        )
    known = {**stored, **settings}
    cutoffs = known.get("cutoffs")
    sizes = _sizes(tensors, system, None if cutoffs is None else tuple(cutoffs), where)
    # Tensors declared as tied are compared later, one by one.
    sizes |= {
        name: known[name] for name in ("tie_weights", "share_tail_projections") if name in known
    }
    defaults = {"layer_norm_epsilon": 1e-5, "same_length_keys": system.same_length_keys}
    config = config_from(sizes, defaults, settings, where, stored, origins)
    table = pytorch_table(config, system)
    return model_from_tensors(config, table, tensors, where, _IGNORED, dtype)


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
            shapes. The attribute `differences` of an error about tensors lists all of them.
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
    `checkpoint["model_state"]` alone. See `load_official_pytorch` for arguments and errors.
    """
    return _load(source, NVIDIA_PYTORCH, what_shapes_cannot_tell, dtype, origins)


def load_hugging_face(
    source: str | Path,
    *,
    dtype: str = "float32",
    origins: dict[str, str] | None = None,
    **what_shapes_cannot_tell: Any,
) -> TransformerXL:
    """Loads a model of Hugging Face's Transformers.

    Sizes are inferred from the tensors. Other settings come from the arguments, the `config.json`
    beside the tensors, or the published model of these sizes, in this order. A `config.json` of
    an unsupported model is a MismatchError. See `load_official_pytorch` for arguments and errors.
    """
    return _load(source, HUGGING_FACE, what_shapes_cannot_tell, dtype, origins)


_CONFIG_FILE = "config.json"
_WEIGHTS_FILE = "model.safetensors"
_VOCABULARY_FILE = "vocab.txt"
_CONFIG_REMEDY = "Restore the configuration, or give the tensors in a folder without one."
# Names of Hugging Face, and of the fields with the same values.
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
# Other values define an unsupported model.
_ONLY = {"attn_type": 0, "ext_len": 0}
_NO_CLAMP = -1


def _stored_fields(path: Path) -> dict[str, Any]:
    """Returns the `ModelConfig` fields of the configuration beside a file of tensors."""
    beside = str(path.with_name(_CONFIG_FILE))
    if not os.path.lexists(beside):
        return {}
    with storage_errors("The configuration beside the tensors cannot be read", beside):
        config = read_json_object(beside, remedy=_CONFIG_REMEDY)
    for name, only in _ONLY.items():
        if config.get(name, only) != only:
            raise MismatchError(
                f"The configuration has {name}={config[name]!r}; only {only} is supported.",
                where=str(path),
                remedy="Such a model cannot be loaded.",
            )
    given = {name: value for name, value in config.items() if value is not None}
    fields = {field: given[name] for name, field in _FIELDS.items() if name in given}
    if given.get("cutoffs") == []:
        fields.pop("division_factor", None)  # a single cluster has no division
    if "clamp_len" in given:
        clamp_length = given["clamp_len"]
        fields["clamp_length"] = None if clamp_length in (0, _NO_CLAMP) else clamp_length
    if "untie_r" in given:
        fields["share_attention_biases"] = not given["untie_r"]
    if isinstance(tied := given.get("tie_projs"), list):
        fields["share_tail_projections"] = len(tied) > 1 and all(tied[1:])
    elif "proj_share_all_but_first" in given:
        shares = bool(given["proj_share_all_but_first"] and given.get("cutoffs"))
        fields["share_tail_projections"] = shares
    return fields


def save_hugging_face(model: TransformerXL, folder: str | Path, words: Sequence[str] = ()) -> Path:
    """Saves a model so that `TransfoXLLMHeadModel.from_pretrained` loads it.

    Args:
        model: `TransformerXL`.
        folder: path of the folder to create.
        words: optional sequence of str. Word of every id, for `TransfoXLTokenizer`.

    Returns:
        The folder, with `config.json`, `model.safetensors` and, with words, `vocab.txt`.

    Raises:
        ValueError: If the model has an option that Hugging Face does not have.
        OutputExistsError: If the folder exists; it is left alone.
        UsageError: If the package safetensors is not installed.
        StorageError: If the folder cannot be written.
    """
    config = _hugging_face_config(model.config)
    folder = Path(folder)
    remedy = "Check free space and permissions, or choose another folder."
    with (
        storage_errors("The model cannot be written", str(folder), remedy),
        StagingFolder(str(folder), last_file=_CONFIG_FILE) as staging,
    ):
        written = Path(staging.path)
        (written / _CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
        write_safetensors(written / _WEIGHTS_FILE, hugging_face_tensors(model))
        if words:
            (written / _VOCABULARY_FILE).write_text("".join(f"{word}\n" for word in words), "utf-8")
        # The package safetensors makes its files readable by the owner only.
        shutil.copymode(written / _CONFIG_FILE, written / _WEIGHTS_FILE)
        staging.publish()
    return folder


def hugging_face_tensors(model: TransformerXL) -> dict[str, np.ndarray]:
    """Returns the float32 state dict with Hugging Face's names, including tied copies."""
    arrays = {
        variable.path: np.asarray(variable.numpy(), dtype=np.float32) for variable in model.weights
    }
    table = pytorch_table(model.config, HUGGING_FACE)
    tensors = {entry.name: entry.to_theirs(arrays) for entry in table}
    exponents = np.arange(0.0, model.config.hidden_dim, 2.0) / model.config.hidden_dim
    tensors["transformer.pos_emb.inv_freq"] = (10000.0**-exponents).astype(np.float32)
    return tensors


def _hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """Builds the `config.json`; ValueError for an option that Hugging Face does not have."""
    needed: dict[str, Any] = {
        "position_encoding": "transformer_xl",
        "recurrence": True,
        "variational_dropout": False,
        "residual_gate": None,
    }
    if config.same_length:
        needed["same_length_keys"] = "memory"
    if config.division_factor > 1 and config.hidden_dim in config.clusters.widths:
        needed["project_same_dim"] = True
    for name, value in needed.items():
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
