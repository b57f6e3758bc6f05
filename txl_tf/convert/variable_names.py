"""The names and shapes of a model's variables, told by its configuration.

Shape letters used in this module: N heads, H head width, D hidden width,
F inner width.
"""

import keras

from txl_tf.config.model_config import ModelConfig
from txl_tf.convert.foreign_tensor import Shape
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.vocabulary_clusters import VocabularyClusters

SHARED_BIASES = ("content_bias", "position_bias")


def clusters_of(config: ModelConfig) -> VocabularyClusters:
    """How a model cuts its vocabulary.

    Args:
        config: `ModelConfig`.

    Returns:
        `VocabularyClusters`.
    """
    return VocabularyClusters(
        vocabulary_size=config.vocabulary_size,
        hidden_dim=config.hidden_dim,
        embedding_dim=config.embedding_dim or config.hidden_dim,
        cutoffs=config.cutoffs,
        division_factor=config.division_factor,
        project_same_dim=config.project_same_dim,
    )


def numbered(name: str, count: int) -> list[str]:
    """Names of several variables; a single one has no number.

    Args:
        name: str.
        count: int.

    Returns:
        List of str.
    """
    return [name] if count == 1 else [f"{name}_{index}" for index in range(count)]


def uses_own_projection(config: ModelConfig, cluster: int) -> bool:
    """Whether the softmax has a projection of its own, if it has one at all.

    Args:
        config: `ModelConfig`.
        cluster: int. Number of the cluster.

    Returns:
        bool.
    """
    return bool(config.cutoffs) and not (config.share_tail_projections and cluster > 0)


def variable_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Names and shapes of all variables of a model that is not built yet.

    Args:
        config: `ModelConfig` with `position_encoding="transformer_xl"`.

    Returns:
        Dict of name to shape.
    """
    shapes = _vocabulary_shapes(config)
    for index in range(config.num_layers):
        for name, shape in _block_shapes(config).items():
            shapes[f"block_{index}/{name}"] = shape
    if config.share_attention_biases:
        for name in SHARED_BIASES:
            shapes[name] = (config.num_heads, config.head_dim)
    return shapes


def named_variables(model: TransformerXL) -> dict[str, keras.Variable]:
    """The variables of a model, under names that do not depend on its own.

    Args:
        model: `TransformerXL`.

    Returns:
        Dict of name to variable.
    """
    shared = {}
    if model.config.share_attention_biases:
        shared = {getattr(model, name).path: name for name in SHARED_BIASES}
    return {shared.get(variable.path, variable.path): variable for variable in model.weights}


def _vocabulary_shapes(config: ModelConfig) -> dict[str, Shape]:
    clusters = clusters_of(config)
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
