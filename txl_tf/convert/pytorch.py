"""Loaders of the models of three PyTorch implementations."""

from pathlib import Path
from typing import Any

from txl_tf.convert.converted_config import check_settings, merge_config
from txl_tf.convert.foreign_tensors import model_from_tensors
from txl_tf.convert.hugging_face_folder import stored_fields
from txl_tf.convert.pytorch_systems import (
    EMBEDDING_TABLES,
    HUGGING_FACE,
    IGNORED_TENSORS,
    NVIDIA_PYTORCH,
    OFFICIAL_PYTORCH,
    PytorchSystem,
    pytorch_table,
    sizes_of_tensors,
)
from txl_tf.convert.tensor_files import find_tensor_file, read_tensors
from txl_tf.errors import MismatchError
from txl_tf.models.transformer_xl import TransformerXL

# A model that PyTorch wraps for several devices has this prefix in its state dict.
_WRAPPED = "module."


def _load(
    source: str | Path,
    system: PytorchSystem,
    settings: dict[str, Any],
    dtype: str,
    origins: dict[str, str] | None,
) -> TransformerXL:
    """Builds a model from a file of tensors, and from Hugging Face's configuration beside it."""
    check_settings(settings)
    path = find_tensor_file(source)
    where = str(path)
    tensors = read_tensors(path)
    fields = stored_fields(path) if system is HUGGING_FACE else {}
    if tensors and all(name.startswith(_WRAPPED) for name in tensors):
        tensors = {name.removeprefix(_WRAPPED): tensor for name, tensor in tensors.items()}
    names = [name.removeprefix(system.prefix) for name in tensors]
    if not any(name.startswith(("word_emb.", "crit.")) for name in names):
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise MismatchError(
            "The tensors are of another implementation. Looked for: "
            f"{system.prefix}{EMBEDDING_TABLES}.0.weight, crit.*. "
            f"Found: {', '.join([*tensors][:3])}{more}.",
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
    sources = {**fields, **settings}
    cutoffs = sources.get("cutoffs")
    sizes = sizes_of_tensors(tensors, system, None if cutoffs is None else tuple(cutoffs), where)
    # If a setting says that tensors are tied, `model_from_tensors` compares them and names those
    # that differ.
    sizes |= {
        name: sources[name] for name in ("tie_weights", "share_tail_projections") if name in sources
    }
    defaults = {"layer_norm_epsilon": 1e-5, "same_length_keys": system.same_length_keys}
    config = merge_config(sizes, defaults, settings, fields, where, origins)
    table = pytorch_table(config, system)
    return model_from_tensors(config, table, tensors, where, IGNORED_TENSORS, dtype)


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
        origins: optional dict, to which the origin of every field of the configuration is added:
            found, given or assumed.
        **what_shapes_cannot_tell: fields of `ModelConfig`. `memory_length` is required unless the
            sizes are published, `cutoffs` for `div_val` 1 with clusters, `pre_norm` for
            `pre_lnorm`.

    Raises:
        InputMissingError: If there is no such file, or torch is missing.
        UsageError: If the package safetensors is missing.
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
    only `checkpoint["model_state"]`. See `load_official_pytorch` for arguments and errors.
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
    beside the tensors, the defaults of the library, or the published model of these sizes, in this
    order. A `config.json` of
    an unsupported model is a MismatchError. See `load_official_pytorch` for arguments and errors.
    """
    return _load(source, HUGGING_FACE, what_shapes_cannot_tell, dtype, origins)
