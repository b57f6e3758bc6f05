"""The model and its variants in NumPy, with loops: the oracle of the tests.

Attention computes one pair of a query and a key at a time, in float64. Tokens of a segment have the
positions 0 to T - 1, and its memory has the positions -M to -1. The attentions differ only in the
score of a pair:

- `"transformer_xl"`: the four terms of Dai et al. (2019), Section 3.3.
- `"shaw"`: Shaw et al. (2018) in the form of the official code, with a learned vector and a learned
  number per distance, and the content bias.
- `"shaw_two_terms"`: Shaw et al. in the form of the paper, with a learned vector per distance.
- `"sinusoidal"`, `"learned"`: query times key. Positions are added to the inputs of attention. They
  are counted backwards from the last token of the segment, so the oldest token in the memory has
  the largest.

Vocabularies with clusters come from `tests.adaptive_reference`.
"""

import math

import numpy as np

from tests import adaptive_reference
from tests.reference import (
    extended_memory,
    feed_forward,
    is_visible,
    layer_norm,
    sinusoid,
    softmax,
)

MASK_DEFAULTS = {"same_length": False, "same_length_keys": "memory_and_self"}


def pair_score(query, key, distance, head):
    """Computes the score of a query and a key in one head; the weights present decide the terms."""
    score = query @ key
    if "content_bias" in head:
        score += head["content_bias"] @ key
    if "position" in head:  # Dai et al.
        position_key = head["encodings"][distance] @ head["position"]
        score += query @ position_key + head["position_bias"] @ position_key
    if "distance_keys" in head:  # Shaw et al.
        row = min(distance, len(head["distance_keys"]) - 1)
        score += query @ head["distance_keys"][row]
        if "distance_bias" in head:
            score += head["distance_bias"][row]
    return score / math.sqrt(len(query))


def head_weights(weights, head, head_dim):
    """Returns the part of the weights of attention that one head uses."""
    columns = slice(head * head_dim, (head + 1) * head_dim)
    parts = {
        **dict.fromkeys(("query", "key", "value", "position"), (slice(None), columns)),
        "output": columns,
        **dict.fromkeys(("content_bias", "position_bias"), head),
        **dict.fromkeys(("distance_keys", "distance_bias"), (slice(None), head)),
    }
    return {name: weights[name][part] for name, part in parts.items() if name in weights}


def attention(inputs, memory, weights, valid_length=None, clamp_length=None, **mask):
    """Computes any of the attentions, without the residual connection."""
    mask = {**MASK_DEFAULTS, **mask}
    inputs, memory = np.asarray(inputs, "float64"), np.asarray(memory, "float64")
    (num_rows, segment_length, hidden_dim), memory_length = inputs.shape, memory.shape[1]
    key_length, head_dim = memory_length + segment_length, weights["value"].shape[1]
    head_dim //= weights["num_heads"]
    encodings = [sinusoid(distance, hidden_dim, clamp_length) for distance in range(key_length)]
    outputs = np.zeros_like(inputs)
    for row, number in np.ndindex(num_rows, weights["num_heads"]):
        filled = memory_length if valid_length is None else int(valid_length[row])
        context = np.concatenate([memory[row], inputs[row]])
        head = head_weights(weights, number, head_dim) | {"encodings": encodings}
        queries, keys = inputs[row] @ head["query"], context @ head["key"]
        for at, query in enumerate(queries):
            scores = np.full(key_length, -np.inf)
            for place, key in enumerate(keys):
                distance, position = memory_length + at - place, place - memory_length
                if is_visible(distance, position, filled, memory_length, **mask):
                    scores[place] = pair_score(query, key, distance, head)
            outputs[row, at] += softmax(scores) @ context @ head["value"] @ head["output"]
    return outputs


def with_positions(inputs, memory, position_at):
    """Adds absolute positions, counted back from the last token of the segment."""
    memory_length = memory.shape[1]
    rows = np.array([position_at(back) for back in range(memory_length + inputs.shape[1])])[::-1]
    return inputs + rows[memory_length:], memory + rows[:memory_length]


def gru_gate(old, new, weights):
    """Applies the gating layer of Parisotto et al. (2019), Section 3.2, to every vector."""
    new = np.maximum(new, 0.0)

    def sigmoid(values):
        return 1.0 / (1.0 + np.exp(-values))

    reset = sigmoid(new @ weights["W_r"] + old @ weights["U_r"])
    update = sigmoid(new @ weights["W_z"] + old @ weights["U_z"] - weights["b_g"])
    candidate = np.tanh(new @ weights["W_g"] + (reset * old) @ weights["U_g"])
    return (1.0 - update) * old + update * candidate


def residual(old, new, weights, name):
    """Joins two arrays (B, n, D) by a gate if the weights have one, else by a sum."""
    return gru_gate(old, new, weights[name]) if name in weights else old + new


def decoder_block(inputs, memory, weights, epsilon=1e-12, pre_norm=False, **options):
    """Computes one block; with `pre_norm` the memory is normalised like the segment."""
    inputs, memory = np.asarray(inputs, "float64"), np.asarray(memory, "float64")
    if "positions" in weights:
        table = weights["positions"]
        inputs, memory = with_positions(
            inputs, memory, lambda back: table[min(back, len(table) - 1)]
        )

    def normal(vectors, name):
        gain, offset = weights[f"{name}_gain"], weights[f"{name}_offset"]
        return layer_norm(vectors, gain, offset, epsilon)

    if pre_norm:
        attended = attention(
            normal(inputs, "attention_norm"), normal(memory, "attention_norm"), weights, **options
        )
        hidden = residual(inputs, attended, weights, "attention_gate")
        transformed = feed_forward(normal(hidden, "feed_forward_norm"), weights)
        return residual(hidden, transformed, weights, "feed_forward_gate")
    hidden = normal(inputs + attention(inputs, memory, weights, **options), "attention_norm")
    return normal(hidden + feed_forward(hidden, weights), "feed_forward_norm")


def language_model(weights, config, token_ids, target_ids, states, valid_length):
    """Reads one segment; returns losses, hidden states, next states and valid lengths."""
    hidden = np.array([[embedded(token, weights, config) for token in row] for row in token_ids])
    next_states = []
    for index, (block, state) in enumerate(zip(weights["blocks"], states, strict=True)):
        state = np.asarray(state, "float64")
        next_states.append(extended_memory(state, hidden))  # before positions are added
        if index == 0 and config.position_encoding == "sinusoidal":
            hidden, state = with_positions(
                hidden, state, lambda back: sinusoid(back, config.hidden_dim, config.clamp_length)
            )
        hidden = decoder_block(
            hidden,
            state,
            block,
            epsilon=config.layer_norm_epsilon,
            pre_norm=config.pre_norm,
            valid_length=valid_length,
            clamp_length=config.clamp_length,
            same_length=config.same_length,
            same_length_keys=config.same_length_keys,
        )
    nll = np.zeros(hidden.shape[:2])
    for row, at in np.ndindex(nll.shape):
        nll[row, at] = -token_log_probs(hidden[row, at], weights, config)[target_ids[row][at]]
    memory_length, segment_length = states[0].shape[1], hidden.shape[1]
    next_valid_length = [min(filled + segment_length, memory_length) for filled in valid_length]
    return nll, hidden, next_states, next_valid_length


def vocabulary_settings(config):
    """Returns the settings that the functions of `tests.adaptive_reference` take."""
    names = ("vocabulary_size", "hidden_dim", "cutoffs", "division_factor", "project_same_dim")
    settings = {name: getattr(config, name) for name in names}
    return settings | {"embedding_dim": config.embedding_dim or config.hidden_dim}


def embedded(token_id, weights, config):
    """Returns the embedding of one token: (D,)."""
    return adaptive_reference.embedding(
        token_id,
        weights["embedding_tables"],
        weights["embedding_projections"],
        vocabulary_settings(config),
    )


def token_log_probs(hidden, weights, config):
    """Computes the log-probabilities of the whole vocabulary after one hidden state (D,)."""
    settings = vocabulary_settings(config)
    projections = [
        adaptive_reference.output_projection(
            cluster,
            settings,
            config.share_tail_projections,
            weights["softmax_projections"],
            weights["embedding_projections"],
        )
        for cluster in range(len(config.cutoffs) + 1)
    ]
    return adaptive_reference.log_probabilities(
        hidden,
        weights["softmax_tables"],
        weights["softmax_biases"],
        projections,
        weights.get("cluster_weight"),
        weights.get("cluster_bias"),
        settings,
    )


def attention_weights(layer, content_bias=None, position_bias=None):
    """Returns the weights of any attention layer as the dict that this module reads."""
    weights = {"num_heads": layer.num_heads, "output": _float64(layer.output_projection.kernel)}
    for name in ("query", "key", "value", "position"):
        if hasattr(layer, name):
            weights[name] = _float64(getattr(layer, name).kernel)
    shared = {"content_bias": content_bias, "position_bias": position_bias}
    for name in ("content_bias", "position_bias", "distance_keys", "distance_bias"):
        bias = getattr(layer, name, None) if shared.get(name) is None else shared[name]
        if bias is not None:
            weights[name] = _float64(bias)
    return weights


def gate_weights(gate):
    """Returns the weights of a `GRUGate` by their names in the paper."""
    kernels = [gate.of_outputs.kernel, gate.of_inputs.kernel, gate.of_reset.kernel]
    joint = np.concatenate([_float64(kernel) for kernel in kernels], axis=1)
    names = ("W_r", "W_z", "W_g", "U_r", "U_z", "U_g")
    return dict(zip(names, np.split(joint, 6, axis=1), strict=True)) | {"b_g": _float64(gate.bias)}


def block_weights(block, content_bias=None, position_bias=None):
    """Returns the weights of a `DecoderBlock` as the dict that this module reads."""
    weights = attention_weights(block.attention, content_bias, position_bias)
    for name in ("attention_norm", "feed_forward_norm"):
        weights[f"{name}_gain"] = _float64(getattr(block, name).gamma)
        weights[f"{name}_offset"] = _float64(getattr(block, name).beta)
    for name in ("inner", "outer"):
        weights[f"{name}_kernel"] = _float64(getattr(block.feed_forward, name).kernel)
        weights[f"{name}_bias"] = _float64(getattr(block.feed_forward, name).bias)
    for name in ("attention_gate", "feed_forward_gate") if block.attention_gate else ():
        weights[name] = gate_weights(getattr(block, name))
    if block.config.position_encoding == "learned":
        weights["positions"] = _float64(block.position_table)
    return weights


def model_weights(model):
    """Returns the weights of a `TransformerXL` as the dict that this module reads."""
    config, embedding, output = model.config, model.embedding, model.softmax
    shared = (model.content_bias, model.position_bias) if config.share_attention_biases else ()
    weights = {
        "blocks": [block_weights(block, *shared) for block in model.blocks],
        "embedding_tables": _all_float64(embedding.tables),
        "embedding_projections": _all_float64(embedding.projections),
        "softmax_tables": _all_float64(
            (embedding if config.tie_weights else output).tables,
        ),
        "softmax_projections": _all_float64(output.projections),
        "softmax_biases": _all_float64(output.biases),
    }
    if config.cutoffs:
        weights["cluster_weight"] = _float64(output.cluster_weight)
        weights["cluster_bias"] = _float64(output.cluster_bias)
    return weights


def _all_float64(variables):
    return [None if variable is None else _float64(variable) for variable in variables]


def _float64(variable):
    return np.asarray(variable.numpy() if hasattr(variable, "numpy") else variable, "float64")
