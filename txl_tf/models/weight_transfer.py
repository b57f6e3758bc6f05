"""Transfer of weights between models: required settings, and rows of shared tokens."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from txl_tf.config.base import describe_differences
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import MismatchError

AnyConfig = ModelConfig | LSTMConfig | QRNNConfig

# These affect neither the shape nor the training of a weight.
_FREE_FIELDS = (
    "segment_length",
    "memory_length",
    "recurrence",
    "clamp_length",
    "same_length",
    "same_length_keys",
    "dropout",
    "variational_dropout",
    "attention_dropout",
    "initializer",
    "initializer_stddev",
    "initializer_range",
    "projection_stddev",
)
# Weights with a row for every token: one array, or one per cluster of the vocabulary.
_ROWS = re.compile(r"(embedding/table|softmax/table|softmax/bias)(?:_(\d+))?")


def require_same_weights(
    stored: AnyConfig, config: AnyConfig, where: str, *, shares_vocabulary: bool = False
) -> None:
    """Raises MismatchError, with the differing settings, if weights do not fit a model.

    Lengths, clamp and dropout may differ. Settings that change the function of the weights, such
    as `pre_norm` and `layer_norm_epsilon`, may not, though their shapes would fit. With
    `shares_vocabulary` vocabularies and cluster bounds may differ, see `rows_of_shared_tokens`.
    """
    if type(stored) is type(config):
        values = [_deciding(each, shares_vocabulary) for each in (stored, config)]
    else:
        values = [{"model.kind": getattr(each, "kind", None)} for each in (stored, config)]
    differences = describe_differences(*values)
    if differences:
        raise MismatchError(
            f"The weights are of another model; {differences}",
            where=where,
            remedy="Leave --config out, or the section `model` of its file, to take the model of "
            "the source; or give the stored values with --set model.FIELD=VALUE.",
        )


def _deciding(config: AnyConfig, shares_vocabulary: bool) -> dict[str, Any]:
    values = {name: each for name, each in config.to_dict().items() if name not in _FREE_FIELDS}
    values["embedding_dim"] = values["embedding_dim"] or values["hidden_dim"]
    if isinstance(config, ModelConfig):
        # These two settings have no effect without cutoffs or a division factor.
        values["share_tail_projections"] = config.share_tail_projections and bool(config.cutoffs)
        values["project_same_dim"] = config.project_same_dim or config.division_factor == 1
    if shares_vocabulary:
        del values["vocabulary_size"]
        values["clusters"] = len(values.pop("cutoffs", ())) + 1
    return {f"model.{name}": value for name, value in values.items()}


def weights_sha256(weights: Mapping[str, np.ndarray]) -> str:
    """Returns SHA-256 of the paths, shapes and float32 values of weights."""
    found = hashlib.sha256()
    for path in sorted(weights):
        array = np.ascontiguousarray(weights[path], np.dtype("<f4"))
        found.update(f"{path} {list(array.shape)}\n".encode())
        found.update(array.data)
    return found.hexdigest()


def shared_tokens(stored: Sequence[bytes], texts: Sequence[bytes]) -> list[tuple[int, int]]:
    """Returns the pairs of ids of tokens with equal text in two vocabularies."""
    ids = {text: index for index, text in enumerate(stored)}
    return [(ids[text], index) for index, text in enumerate(texts) if text in ids]


def rows_of_shared_tokens(
    weights: Mapping[str, np.ndarray],
    initial: Mapping[str, np.ndarray],
    stored: AnyConfig,
    config: AnyConfig,
    pairs: Sequence[tuple[int, int]],
) -> dict[str, np.ndarray]:
    """Returns weights for another vocabulary: rows of shared tokens, others initial.

    The clusters of an adaptive embedding have their own widths and projections, so a token that
    changes its cluster gets initial rows. `require_same_weights` must have passed; `pairs` come
    from `shared_tokens`.
    """
    if not pairs:
        return dict(initial)
    before, after = np.array(pairs).T
    firsts, others = _cluster_starts(stored), _cluster_starts(config)
    cluster_before, cluster_after = (
        np.searchsorted(starts, ids, "right") - 1
        for starts, ids in ((firsts, before), (others, after))
    )
    moved: dict[str, np.ndarray] = {}
    for path, array in initial.items():
        match = _ROWS.fullmatch(path)
        if match is None:
            moved[path] = weights[path]
            continue
        rows = np.array(array)
        cluster = int(match[2] or 0)
        is_here = np.ones(len(before), bool)
        if match[2] is not None:
            is_here = (cluster_before == cluster) & (cluster_after == cluster)
        origins = (firsts[cluster], others[cluster]) if match[2] is not None else (0, 0)
        rows[after[is_here] - origins[1]] = weights[path][before[is_here] - origins[0]]
        moved[path] = rows
    return moved


def _cluster_starts(config: AnyConfig) -> np.ndarray:
    return np.array([0, *getattr(config, "cutoffs", ())])
