"""Parameters, operations and activations of a configuration, counted without a model.

Shape letters used in this module: D hidden width, F inner width, N heads, H head width, B rows,
T segment length, M memory length, K = M + T key length, E = N * H width of all heads, V
vocabulary, L layers, S positions with a loss.
"""

import itertools
import math
from collections.abc import Iterable

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import AnyModelConfig, LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.config.optimizer import OptimizerConfig


def num_parameters(config: AnyModelConfig) -> int:
    """Counts the trainable parameters of a model; shared weights count once."""
    if not isinstance(config, ModelConfig):
        own = config.vocabulary_size * (config.table_dim + 1)
        return sum(_recurrent_layer_parameters(config)) + own
    biases = 2 * _width(config) if config.share_attention_biases else 0
    blocks = config.num_layers * _block_parameters(config)
    return num_embedding_parameters(config) + blocks + biases + _softmax_parameters(config)


def _recurrent_layer_parameters(config: LSTMConfig | QRNNConfig) -> list[int]:
    widths = (config.table_dim, *config.layer_dims)
    if isinstance(config, LSTMConfig):
        # Four gates, each of the input, of the previous output, and a bias.
        return [4 * (new * (old + new) + new) for old, new in itertools.pairwise(widths)]
    # Two tokens side by side make a candidate and two gates.
    return [3 * (2 * old * new + new) for old, new in itertools.pairwise(widths)]


def num_embedding_parameters(config: AnyModelConfig) -> int:
    """Counts the parameters of the embedding, included in `num_parameters`."""
    if not isinstance(config, ModelConfig):
        return config.vocabulary_size * config.table_dim
    clusters = config.clusters
    return _size(clusters.table_shapes) + _size(clusters.projection_shapes)


def _kernel_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """Returns the shapes of all kernels of a block."""
    hidden, inner, width = config.hidden_dim, config.intermediate_dim, _width(config)
    shapes = [*[(hidden, width)] * 3, (width, hidden), (hidden, inner), (inner, hidden)]
    if config.position_encoding == "transformer_xl":
        shapes.append((hidden, width))
    if config.residual_gate:
        shapes += 2 * [(hidden, 3 * hidden), (hidden, 2 * hidden), (hidden, hidden)]
    return shapes


def _width(config: ModelConfig) -> int:
    return config.num_heads * config.head_dim


def _block_parameters(config: ModelConfig) -> int:
    # Biases of the feed-forward layer, two norms, and a bias of each gate.
    vectors = config.intermediate_dim + (7 if config.residual_gate else 5) * config.hidden_dim
    return _size(_kernel_shapes(config)) + vectors + _position_parameters(config)


def _position_parameters(config: ModelConfig) -> int:
    """Counts the biases of scores and the numbers of learned positions in a block."""
    num_positions = config.num_positions or 0
    match config.position_encoding:
        case "transformer_xl":
            return 0 if config.share_attention_biases else 2 * _width(config)
        case "shaw":
            return _width(config) + num_positions * (_width(config) + config.num_heads)
        case "shaw_two_terms":
            return num_positions * _width(config)
        case "learned":
            return num_positions * config.hidden_dim
    return 0


def num_adapter_parameters(config: ModelConfig, rank: int) -> int:
    """Counts the parameters of `Adapters`, the only ones that such a run stores."""
    return config.num_layers * rank * sum(map(sum, _kernel_shapes(config)))


def _softmax_parameters(config: ModelConfig) -> int:
    clusters = config.clusters
    num_tails = len(config.cutoffs)
    count = config.vocabulary_size + num_tails * (clusters.widths[0] + 1)
    if not config.tie_weights:
        count += _size(clusters.table_shapes)
    if num_tails:
        # Without clusters the projection is the embedding's.
        own = 1 if config.share_tail_projections else num_tails + 1
        count += _size(clusters.output_projection_shapes[:own])
    return count


def _size(shapes: Iterable[tuple[int, int] | None]) -> int:
    return sum(math.prod(shape) for shape in shapes if shape is not None)


def reading_flops_per_token(config: ModelConfig) -> int:
    """Counts the floating-point operations of the model for reading one token.

    Each multiplication with a weight and with a key that attention sees counts two. Keys and
    values of the memory are cached. Weights of positions, biases and norms count like others.
    Embedding lookups and the clusters of rare tokens do not count.
    """
    blocks = config.num_layers * _block_parameters(config)
    num_keys = config.effective_memory_length + config.segment_length
    attention = 2 * config.num_layers * _width(config) * num_keys
    return 2 * (blocks + attention + _softmax_products(config))


def row_numbers(model: ModelConfig) -> int:
    """Counts the numbers that the backward pass keeps for one row in one layer.

    The block's input and memory, queries with their biases, keys, values, probabilities, results of
    the heads, sums before and after both norms, and inner activations before and after dropout.
    """
    segment, memory = model.segment_length, model.effective_memory_length  # T, M
    keys, width = memory + segment, _width(model)  # K, E
    num_queries = 2 if model.has_relative_positions else 1
    return (
        4 * segment * model.hidden_dim
        + (keys * model.hidden_dim if memory > 0 else 0)
        + (num_queries + 1) * segment * width
        + 2 * keys * width
        + model.num_heads * segment * keys
        + 2 * segment * model.intermediate_dim
        # Each of two gates keeps its outputs after the ReLU, r, z, h and r * x.
        + (2 * 5 * segment * model.hidden_dim if model.residual_gate else 0)
    )


def run_flops_per_token(experiment: ExperimentConfig) -> int:
    """Counts the floating-point operations of a run for one token.

    These are three times the operations of `reading_flops_per_token`, and the keys and values of
    the memory. Gradients of weights that are not trained, the backward pass below the lowest
    trained layer, and losses of positions without one do not count. Adapters count, but neither the
    head of a task nor rematerialisation. A recurrent model counts six for each weight outside the
    embedding.
    """
    config, training, frozen = experiment.model, experiment.training, experiment.frozen_parts
    has_adapters, has_task = training.adapter_rank is not None, experiment.task is not None
    softmax = _softmax_products(config)
    layers = _products_of_layers(config)
    # A multiplication counts two in the forward pass, and two for each of its two gradients.
    count = 6 * (sum(map(sum, layers)) + softmax)
    # True if gradients pass to the layers below.
    passes_on = not frozen.embedding and not has_adapters
    for index, (weights, keys) in enumerate(layers):
        is_trained = index not in frozen.layers and not has_adapters
        passes_on = passes_on or is_trained or has_adapters
        count -= 0 if is_trained else 2 * weights
        count -= 0 if passes_on else 2 * weights + 4 * keys
    is_tied = not isinstance(config, ModelConfig) or config.tie_weights
    is_kept = frozen.embedding if is_tied else frozen.softmax
    per_softmax = 2 * (1 + passes_on + (not is_kept and not has_adapters))
    scored_share = 0.0 if has_task else 1.0
    count -= softmax * (6 - per_softmax * scored_share)
    if isinstance(config, ModelConfig) and training.adapter_rank is not None:
        count += 6 * num_adapter_parameters(config, training.adapter_rank)
    return int(count)


def _products_of_layers(config: AnyModelConfig) -> list[tuple[float, float]]:
    """Returns for each layer the multiplications with weights, and with keys and values."""
    if not isinstance(config, ModelConfig):
        return [(float(count), 0.0) for count in _recurrent_layer_parameters(config)]
    width = _width(config)
    memory_share = config.effective_memory_length / config.segment_length
    weights = _block_parameters(config) + 2 * config.hidden_dim * width * memory_share
    num_keys = config.effective_memory_length + config.segment_length
    return [(weights, 2.0 * width * num_keys)] * config.num_layers


def _softmax_products(config: AnyModelConfig) -> int:
    if not isinstance(config, ModelConfig):
        return config.vocabulary_size * config.table_dim
    return (config.cutoffs[0] if config.cutoffs else config.vocabulary_size) * config.hidden_dim


_OPTIMIZER_COPIES = {"adam": 2, "adamw": 2, "lamb": 2, "muon": 2, "sgd": 1}


def optimizer_copies(optimizer: OptimizerConfig) -> int:
    """Returns the most numbers that an optimizer keeps for a weight; Muon keeps one for kernels."""
    has_none = optimizer.name == "sgd" and not optimizer.momentum
    return 0 if has_none else _OPTIMIZER_COPIES[optimizer.name]
