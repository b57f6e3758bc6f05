"""Translates `config.json` of Hugging Face's Transformer-XL."""

from collections.abc import Callable
from typing import Any

from txl_tf.config.model_config import ModelConfig
from txl_tf.convert.variable_names import clusters_of
from txl_tf.errors import MismatchError

_INTEGERS = {
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
}
_FLOATS = {
    "dropout": "dropout",
    "dropatt": "attention_dropout",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "init_std": "initializer_stddev",
    "init_range": "initializer_range",
    "proj_init_std": "projection_stddev",
}
_BOOLEANS = {
    "same_length": "same_length",
    "pre_lnorm": "pre_norm",
    "tie_word_embeddings": "tie_weights",
}
# Values other than these would be another model.
_ONLY = {"attn_type": 0, "ext_len": 0}


def from_hugging_face_config(config: dict[str, Any], where: str) -> dict[str, Any]:
    """Fields of our configuration that theirs tells.

    Keys that say nothing about the numbers are passed over.

    Args:
        config: dict. The parsed `config.json`.
        where: str. The file, for messages.

    Returns:
        Dict of fields of `ModelConfig`.

    Raises:
        MismatchError: If a value is of the wrong type, or asks for something
            that is not supported.
    """
    for name, only in _ONLY.items():
        if config.get(name, only) != only:
            raise MismatchError(
                f"The configuration has {name}={config[name]!r}; only {only} is supported.",
                where=where,
                remedy="Such a model cannot be loaded.",
            )
    fields: dict[str, Any] = {}
    for names, is_valid in ((_INTEGERS, _is_int), (_FLOATS, _is_number), (_BOOLEANS, _is_bool)):
        for name, field in names.items():
            if config.get(name) is not None:
                fields[field] = _checked(config, name, is_valid, where)
    if fields.get("division_factor", 1) != 1 and config.get("cutoffs") == []:
        del fields["division_factor"]  # one cluster is not narrower than another
    clamp_length = config.get("clamp_len")
    if clamp_length is not None:
        clamp_length = _checked(config, "clamp_len", _is_int, where)
        fields["clamp_length"] = clamp_length if clamp_length > 0 else None
    if config.get("untie_r") is not None:
        fields["share_attention_biases"] = not _checked(config, "untie_r", _is_bool, where)
    if config.get("cutoffs") is not None:
        fields["cutoffs"] = tuple(_checked(config, "cutoffs", _is_list_of(_is_int), where))
    fields |= _tied_projections(config, where)
    return fields


def to_hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """Builds the `config.json` of a model.

    Args:
        config: `ModelConfig`.

    Returns:
        Dict of JSON values.

    Raises:
        ValueError: If the model has an option that Hugging Face has not.
    """
    _check_expressible(config)
    plain = config.to_dict()
    values = {name: plain[field] for name, field in (_INTEGERS | _FLOATS | _BOOLEANS).items()}
    share_tails = config.share_tail_projections
    return {
        "architectures": ["TransfoXLLMHeadModel"],
        "model_type": "transfo-xl",
        "torch_dtype": "float32",
        **values,
        "d_embed": clusters_of(config).embedding_dim,
        "adaptive": True,
        "attn_type": 0,
        "clamp_len": config.clamp_length or -1,
        "cutoffs": list(config.cutoffs),
        "init": config.initializer,
        "proj_share_all_but_first": share_tails,
        "sample_softmax": -1,
        # Without clusters there is one projection, which is the embedding's.
        "tie_projs": [not config.cutoffs, *(share_tails for _ in config.cutoffs)],
        "untie_r": not config.share_attention_biases,
    }


def _check_expressible(config: ModelConfig) -> None:
    needed = {
        "position_encoding": "transformer_xl",
        "recurrence": True,
        "variational_dropout": False,
    }
    if config.same_length:
        needed["same_length_keys"] = "memory"
    if config.division_factor > 1 and config.hidden_dim in clusters_of(config).widths:
        needed["project_same_dim"] = True
    for name, value in needed.items():
        if getattr(config, name) != value:
            raise ValueError(
                f"Hugging Face's Transformer-XL is always as with `{name}={value!r}` here. "
                f"Received: {name}={getattr(config, name)!r}"
            )


def _tied_projections(config: dict[str, Any], where: str) -> dict[str, Any]:
    if config.get("tie_projs") is not None:
        tied = _checked(config, "tie_projs", _is_list_of(_is_bool), where)
        return {"share_tail_projections": len(tied) > 1 and all(tied[1:])}
    if config.get("proj_share_all_but_first") is not None:
        shared = _checked(config, "proj_share_all_but_first", _is_bool, where)
        return {"share_tail_projections": shared and bool(config.get("cutoffs"))}
    return {}


def _checked(config: dict[str, Any], name: str, is_valid: Callable[[Any], bool], where: str) -> Any:
    if not is_valid(config[name]):
        raise MismatchError(
            f"The configuration has {name}={str(config[name])[:80]!r}, which is of the wrong type.",
            where=where,
            remedy="Correct it, or give the file of tensors alone.",
        )
    return config[name]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))
