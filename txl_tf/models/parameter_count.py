"""How many numbers a model has to learn, without building it.

Shape letters used in this module: D hidden width, F inner width, N heads,
H head width.
"""

import itertools
import math

from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.qrnn_config import QRNNConfig
from txl_tf.vocabulary_clusters import VocabularyClusters


def num_parameters(config: ModelConfig | LSTMConfig | QRNNConfig) -> int:
    """Counts the trainable parameters of a model.

    Shared weights count once.

    Args:
        config: `ModelConfig`, `LSTMConfig` or `QRNNConfig`.

    Returns:
        The number of parameters.
    """
    if not isinstance(config, ModelConfig):
        return _recurrent_parameters(config)
    biases = 0
    if config.share_attention_biases:
        biases = 2 * config.num_heads * config.head_dim
    blocks = config.num_layers * _block_parameters(config)
    return _embedding_parameters(config) + blocks + biases + _softmax_parameters(config)


def _recurrent_parameters(config: LSTMConfig | QRNNConfig) -> int:
    widths = (config.table_dim, *config.layer_dims)
    if isinstance(config, LSTMConfig):
        # Four gates, each of the input, of what the layer said before, and a bias.
        layers = [4 * (new * (old + new) + new) for old, new in itertools.pairwise(widths)]
    else:
        # Two tokens side by side, and three things made of them.
        layers = [3 * (2 * old * new + new) for old, new in itertools.pairwise(widths)]
    return sum(layers) + config.vocabulary_size * (config.table_dim + 1)


def _block_parameters(config: ModelConfig) -> int:
    feed_forward = (
        2 * config.hidden_dim * config.intermediate_dim
        + config.intermediate_dim
        + config.hidden_dim
    )
    norms = 2 * 2 * config.hidden_dim
    return _attention_parameters(config) + feed_forward + norms


def _attention_parameters(config: ModelConfig) -> int:
    width = config.num_heads * config.head_dim
    count = 4 * config.hidden_dim * width  # query, key, value and output
    if config.position_encoding == "transformer_xl":
        count += config.hidden_dim * width
        count += 0 if config.share_attention_biases else 2 * width
    elif config.position_encoding == "shaw":
        count += width + config.num_positions * (width + config.num_heads)
    elif config.position_encoding == "learned":
        count += config.num_positions * config.hidden_dim
    return count


def _clusters(config: ModelConfig) -> VocabularyClusters:
    return VocabularyClusters(
        vocabulary_size=config.vocabulary_size,
        hidden_dim=config.hidden_dim,
        embedding_dim=config.embedding_dim or config.hidden_dim,
        cutoffs=config.cutoffs,
        division_factor=config.division_factor,
        project_same_dim=config.project_same_dim,
    )


def _embedding_parameters(config: ModelConfig) -> int:
    clusters = _clusters(config)
    return _size(clusters.table_shapes) + _size(clusters.projection_shapes)


def _softmax_parameters(config: ModelConfig) -> int:
    clusters = _clusters(config)
    num_tails = len(config.cutoffs)
    count = config.vocabulary_size + num_tails * (clusters.widths[0] + 1)
    if not config.tie_weights:
        count += _size(clusters.table_shapes)
    if num_tails:
        # Without clusters the projection is the embedding's.
        own = 1 if config.share_tail_projections else num_tails + 1
        count += _size(clusters.output_projection_shapes[:own])
    return count


def _size(shapes: tuple[tuple[int, int] | None, ...]) -> int:
    return sum(math.prod(shape) for shape in shapes if shape is not None)
