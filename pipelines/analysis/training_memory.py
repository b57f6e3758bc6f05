"""How much memory a training step needs, by a formula.

Shape letters used in this module: B rows, T segment length, M memory length,
K = M + T key length, D hidden width, E = N * H width of all heads, F inner
width, N heads, V vocabulary, L layers, S positions with a loss.
"""

from typing import cast

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.limits import MAX_TOKENS
from txl_tf.config.model_config import ModelConfig
from txl_tf.models.parameter_count import num_parameters

_FLOAT_BYTES = 4
# Weights, their gradients, and Adam's two means.
_NUMBERS_PER_PARAMETER = 4


def training_memory_bytes(experiment: ExperimentConfig) -> int:
    """Estimates the memory of a training step in float32.

    What counts is what the backward pass reads again, of every row and layer:
    the block's input and the memory beside it, queries with their biases, keys,
    values, the probabilities, what the heads return, the sums before and
    after both norms, and the inner activations before and after dropout; keys
    of positions, once for all rows; the logits and their gradient; and four
    numbers for every parameter. What a compiler keeps beyond that, or computes
    again, is not known here, and is much the same for the models compared. The
    full softmax is assumed.

    Args:
        experiment: `ExperimentConfig`.

    Returns:
        The memory in bytes.
    """
    model, training = cast(ModelConfig, experiment.model), experiment.training
    segment = model.segment_length  # T
    memory = model.effective_memory_length  # M
    keys, width = memory + segment, model.num_heads * model.head_dim  # K, E
    positions = keys * width if model.has_relative_positions else 0
    scored = segment - (segment // 2 if training.loss_positions == "last_half" else 0)  # S
    logits = 2 * scored * model.vocabulary_size
    numbers = (
        training.global_batch_size * (model.num_layers * row_numbers(model) + logits)
        + model.num_layers * positions
        + _NUMBERS_PER_PARAMETER * num_parameters(model)
    )
    return _FLOAT_BYTES * numbers


def row_numbers(model: ModelConfig) -> int:
    """What the backward pass reads again of a row in a layer.

    Args:
        model: `ModelConfig`.

    Returns:
        How many numbers.
    """
    segment = model.segment_length  # T
    memory = model.effective_memory_length  # M
    keys, width = memory + segment, model.num_heads * model.head_dim  # K, E
    num_queries = 2 if model.has_relative_positions else 1
    return (
        4 * segment * model.hidden_dim
        + (keys * model.hidden_dim if memory > 0 else 0)
        + (num_queries + 1) * segment * width
        + 2 * keys * width
        + model.num_heads * segment * keys
        + 2 * segment * model.intermediate_dim
    )


def equal_memory_segment_length(reference: ExperimentConfig, candidate: ExperimentConfig) -> int:
    """The longest segment with which a model needs no more memory than another.

    As in Table 8 of Dai et al. (2019), Appendix A: what recurrence costs in
    memory, a model without it may spend on longer segments.

    Args:
        reference: `ExperimentConfig` whose memory is the budget.
        candidate: `ExperimentConfig`; its segment length does not count.

    Returns:
        The length.

    Raises:
        ValueError: If not even segments of one token fit.
    """
    budget = training_memory_bytes(reference)
    length, step = 0, MAX_TOKENS
    # A longer segment never needs less.
    while step:
        if length + step <= MAX_TOKENS and _fits(candidate, length + step, budget):
            length += step
        step //= 2
    if length == 0:
        raise ValueError(
            f"The model does not fit into the memory of the other at any segment length. "
            f"Received: a budget of {budget} bytes"
        )
    return length


def _fits(experiment: ExperimentConfig, length: int, budget: int) -> bool:
    return training_memory_bytes(_with_length(experiment, length)) <= budget


def _with_length(experiment: ExperimentConfig, length: int) -> ExperimentConfig:
    model = cast(ModelConfig, experiment.model)
    has_table = model.num_positions is not None
    return experiment.replace(
        model=model.replace(
            segment_length=length,
            num_positions=length + model.memory_length if has_table else None,
        )
    )
