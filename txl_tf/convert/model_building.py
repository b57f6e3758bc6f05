"""Construction of a model from tensors whose names, shapes and values were checked.

Shape letters used in this module: N heads, H head width, D hidden width, F inner width.
"""

import re
from collections.abc import Iterable

import keras
import numpy as np

from txl_tf.config.model import ModelConfig
from txl_tf.convert.foreign_tensors import (
    ForeignTensor,
    Shape,
    TensorDifferences,
    damaged,
    mismatch,
)
from txl_tf.models.transformer_xl import TransformerXL

SHARED_BIASES = ("content_bias", "position_bias")


def numbered(name: str, count: int) -> list[str]:
    """Returns names of several variables, numbered if there is more than one."""
    return [name] if count == 1 else [f"{name}_{index}" for index in range(count)]


def uses_own_projection(config: ModelConfig, cluster: int) -> bool:
    """True if the softmax projection of the cluster, if any, is separate from the embedding's."""
    return bool(config.cutoffs) and not (config.share_tail_projections and cluster > 0)


def variable_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Returns names and shapes of all variables of a model before it is built."""
    shapes = _vocabulary_shapes(config)
    for index in range(config.num_layers):
        for name, shape in _block_shapes(config).items():
            shapes[f"block_{index}/{name}"] = shape
    if config.share_attention_biases:
        for name in SHARED_BIASES:
            shapes[name] = (config.num_heads, config.head_dim)
    return shapes


def named_variables(model: TransformerXL) -> dict[str, keras.Variable]:
    """Returns the variables of a model by names independent of Keras' names."""
    shared = {}
    if model.config.share_attention_biases:
        shared = {getattr(model, name).path: name for name in SHARED_BIASES}
    return {shared.get(variable.path, variable.path): variable for variable in model.weights}


def _vocabulary_shapes(config: ModelConfig) -> dict[str, Shape]:
    clusters = config.clusters
    num_tables, num_clusters = len(clusters.table_shapes), len(clusters.sizes)
    shapes: dict[str, Shape] = {}
    for layer in ("embedding",) if config.tie_weights else ("embedding", "softmax"):
        shapes |= zip(numbered(f"{layer}/table", num_tables), clusters.table_shapes, strict=True)
    for name, shape in zip(
        numbered("embedding/projection", num_tables), clusters.projection_shapes, strict=True
    ):
        if shape is not None:
            shapes[name] = shape
    for name, size in zip(numbered("softmax/bias", num_clusters), clusters.sizes, strict=True):
        shapes[name] = (size,)
    for index, shape in enumerate(clusters.output_projection_shapes):
        if shape is not None and uses_own_projection(config, index):
            shapes[f"softmax/projection_{index}"] = shape
    if config.cutoffs:
        shapes["softmax/cluster_weight"] = (len(config.cutoffs), clusters.widths[0])
        shapes["softmax/cluster_bias"] = (len(config.cutoffs),)
    return shapes


def _block_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden_dim, inner_dim = config.hidden_dim, config.intermediate_dim
    width = config.num_heads * config.head_dim
    shapes: dict[str, Shape] = {
        f"attention/{name}/kernel": (hidden_dim, width)
        for name in ("query", "key", "value", "position")
    }
    shapes["attention/output/kernel"] = (width, hidden_dim)
    if not config.share_attention_biases:
        for name in SHARED_BIASES:
            shapes[f"attention/{name}"] = (config.num_heads, config.head_dim)
    for name in ("attention_norm", "feed_forward_norm"):
        shapes[f"{name}/gamma"] = shapes[f"{name}/beta"] = (hidden_dim,)
    shapes["feed_forward/inner/kernel"] = (hidden_dim, inner_dim)
    shapes["feed_forward/inner/bias"] = (inner_dim,)
    shapes["feed_forward/outer/kernel"] = (inner_dim, hidden_dim)
    shapes["feed_forward/outer/bias"] = (hidden_dim,)
    return shapes


def model_from_tensors(
    config: ModelConfig,
    table: list[ForeignTensor],
    tensors: dict[str, np.ndarray],
    where: str,
    ignored: re.Pattern[str],
    dtype: str,
) -> TransformerXL:
    """Builds a model from the tensors of a checkpoint, if all of them fit.

    Raises MismatchError for missing, unexpected or misshapen tensors or unequal copies,
    DataDamagedError for values that are not finite, both with all `differences`.
    """
    shapes = variable_shapes(config)
    _raise_for(_differences_of_shapes(table, tensors, shapes, ignored), where)
    tensors = {name: _float32(tensor) for name, tensor in tensors.items() if _is_float(tensor)}
    _raise_for(_differences_of_values(table, tensors, shapes), where)
    arrays: dict[str, np.ndarray] = {}
    for entry in table:
        if not entry.is_copy:
            arrays |= entry.to_ours(tensors[entry.name], shapes)
    return _build(config, arrays, dtype)


def _build(config: ModelConfig, arrays: dict[str, np.ndarray], dtype: str) -> TransformerXL:
    model = TransformerXL(config, dtype=dtype)
    variables = named_variables(model)
    assert variables.keys() == arrays.keys(), set(variables) ^ set(arrays)
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return model


def _differences_of_shapes(
    table: list[ForeignTensor],
    tensors: dict[str, np.ndarray],
    shapes: dict[str, Shape],
    ignored: re.Pattern[str],
) -> TensorDifferences:
    known = {entry.name for entry in table}
    surplus = [name for name in tensors if name not in known and not ignored.fullmatch(name)]
    missing = [e.name for e in table if e.name not in tensors and not e.is_copy]
    misshapen = [
        _misshape(entry.name, tensors[entry.name], entry.shape(shapes))
        for entry in table
        if entry.name in tensors
    ]
    return TensorDifferences(
        missing=_sorted(missing),
        surplus=_sorted(surplus),
        misshapen=_sorted(each for each in misshapen if each is not None),
    )


def _differences_of_values(
    table: list[ForeignTensor], tensors: dict[str, np.ndarray], shapes: dict[str, Shape]
) -> TensorDifferences:
    entries = [entry for entry in table if entry.name in tensors]
    non_finite = [e.name for e in entries if not np.isfinite(tensors[e.name]).all()]
    originals: dict[str, np.ndarray] = {}
    for entry in entries:
        if not entry.is_copy:
            originals |= entry.to_ours(tensors[entry.name], shapes)
    unequal = [
        entry.name
        for entry in entries
        if entry.is_copy
        and entry.name not in non_finite
        and not np.array_equal(tensors[entry.name], entry.to_theirs(originals))
    ]
    return TensorDifferences(unequal=_sorted(unequal), non_finite=_sorted(non_finite))


def _misshape(name: str, tensor: np.ndarray, expected: Shape) -> str | None:
    if not _is_float(tensor):
        return f"{name} is {tensor.dtype}, not a float"
    if tensor.shape != expected:
        return f"{name} is {_text(tensor.shape)}, not {_text(expected)}"
    return None


def _raise_for(differences: TensorDifferences, where: str) -> None:
    if not differences:
        return
    make_error = damaged if differences.only_non_finite else mismatch
    raise make_error(differences, where)


def _is_float(tensor: np.ndarray) -> bool:
    # bfloat16 is not of NumPy's kind "f".
    return tensor.dtype.kind == "f" or tensor.dtype.name == "bfloat16"


def _float32(tensor: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # larger values become infinite and are refused
        return tensor.astype(np.float32, copy=False)


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "a number"
