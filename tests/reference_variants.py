"""The model and its variants with loops: the oracle of the tests.

One pair of a query and a key at a time, in float64, with positions 0 .. T - 1
for a segment and -M .. -1 for its memory. What a pair's score consists of is
the only difference between the attentions:

- `"transformer_xl"`: the four terms of Dai et al. (2019), Section 3.3.
- `"shaw"`: Shaw et al. (2018) as the official code has it: a learned vector and
  a learned number per distance, and the content bias.
- `"shaw_two_terms"`: Shaw et al. as the paper words it: a learned vector per distance.
- `"sinusoidal"`, `"learned"`: query times key. Positions are part of what the
  attention reads, and are counted backwards from the segment's last token, so
  the oldest thing in the memory has the largest.

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
    """Score of one query and one key in one head; which weights there are decides the terms."""
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
    """The part of an attention's weights that one head uses."""
    columns = slice(head * head_dim, (head + 1) * head_dim)
    part = {
        name: weights[name][:, columns]
        for name in ("query", "key", "value", "position")
        if name in weights
    }
    part["output"] = weights["output"][columns]
    for name in ("content_bias", "position_bias"):
        if name in weights:
            part[name] = weights[name][head]
    for name in ("distance_keys", "distance_bias"):
        if name in weights:
            part[name] = weights[name][:, head]
    return part


def attention(inputs, memory, weights, valid_length=None, clamp_length=None, **mask):
    """Any of the attentions, without residual."""
    mask = {**MASK_DEFAULTS, **mask}
    inputs, memory = np.asarray(inputs, "float64"), np.asarray(memory, "float64")
    num_rows, segment_length, hidden_dim = inputs.shape
    memory_length = memory.shape[1]
    head_dim = weights["query"].shape[1] // weights["num_heads"]
    encodings = [
        sinusoid(distance, hidden_dim, clamp_length)
        for distance in range(memory_length + segment_length)
    ]
    outputs = np.zeros_like(inputs)
    for row in range(num_rows):
        filled = memory_length if valid_length is None else int(valid_length[row])
        context = {at - memory_length: vector for at, vector in enumerate(memory[row])}
        context |= dict(enumerate(inputs[row]))
        for number in range(weights["num_heads"]):
            head = head_weights(weights, number, head_dim) | {"encodings": encodings}
            keys = {at: vector @ head["key"] for at, vector in context.items()}
            for query_at in range(segment_length):
                query = inputs[row, query_at] @ head["query"]
                scores = [
                    pair_score(query, key, query_at - key_at, head)
                    if is_visible(query_at, key_at, filled, memory_length, **mask)
                    else None
                    for key_at, key in keys.items()
                ]
                read = np.zeros(head_dim)
                for probability, vector in zip(softmax(scores), context.values(), strict=True):
                    read += probability * (vector @ head["value"])
                outputs[row, query_at] += read @ head["output"]
    return outputs


def with_positions(inputs, memory, position_at):
    """Adds absolute positions, counted back from the last token of the segment."""
    segment_length, memory_length = inputs.shape[1], memory.shape[1]
    inputs, memory = inputs.copy(), memory.copy()
    for at in range(segment_length):
        inputs[:, at] += position_at(segment_length - 1 - at)
    for at in range(memory_length):
        memory[:, at] += position_at(segment_length - 1 + memory_length - at)
    return inputs, memory


def normalised(vectors, weights, name, epsilon):
    """Every vector of (B, n, D) normalised on its own."""
    result = np.zeros_like(vectors)
    for row, at in np.ndindex(vectors.shape[:2]):
        result[row, at] = layer_norm(
            vectors[row, at], weights[f"{name}_gain"], weights[f"{name}_offset"], epsilon
        )
    return result


def gru_gate(old, new, weights):
    """The gating layer of Parisotto et al. (2019), Section 3.2, of two vectors."""
    new = np.array([max(value, 0.0) for value in new])

    def sigmoid(values):
        return np.array([1.0 / (1.0 + math.exp(-value)) for value in values])

    reset = sigmoid(new @ weights["W_r"] + old @ weights["U_r"])
    update = sigmoid(new @ weights["W_z"] + old @ weights["U_z"] - weights["b_g"])
    candidate = np.tanh(new @ weights["W_g"] + (reset * old) @ weights["U_g"])
    return (1.0 - update) * old + update * candidate


def residual(old, new, weights, name):
    """The sum of two arrays (B, n, D), or their gates."""
    if name not in weights:
        return old + new
    result = np.zeros_like(old)
    for place in np.ndindex(old.shape[:2]):
        result[place] = gru_gate(old[place], new[place], weights[name])
    return result


def decoder_block(inputs, memory, weights, epsilon=1e-12, pre_norm=False, **options):
    """One block; with `pre_norm` the memory is normalised like the segment."""
    inputs, memory = np.asarray(inputs, "float64"), np.asarray(memory, "float64")
    if "positions" in weights:
        table = weights["positions"]
        inputs, memory = with_positions(
            inputs, memory, lambda back: table[min(back, len(table) - 1)]
        )

    def normal(vectors, name):
        return normalised(vectors, weights, name, epsilon)

    if pre_norm:
        attended = attention(
            normal(inputs, "attention_norm"), normal(memory, "attention_norm"), weights, **options
        )
        hidden = residual(inputs, attended, weights, "attention_gate")
        transformed = _each(feed_forward, normal(hidden, "feed_forward_norm"), weights)
        return residual(hidden, transformed, weights, "feed_forward_gate")
    hidden = normal(inputs + attention(inputs, memory, weights, **options), "attention_norm")
    return normal(hidden + _each(feed_forward, hidden, weights), "feed_forward_norm")


def _each(function, vectors, weights):
    return np.array([[function(vector, weights) for vector in row] for row in vectors])


def language_model(weights, config, token_ids, target_ids, states, valid_length):
    """The whole model over one segment: losses, hidden states, next states and valid lengths."""
    hidden = np.array([[embedded(token, weights, config) for token in row] for row in token_ids])
    next_states = []
    for index, (block, state) in enumerate(zip(weights["blocks"], states, strict=True)):
        state = np.asarray(state, "float64")
        next_states.append(extended_memory(state, hidden))  # without any position
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
    """What `tests.adaptive_reference` calls settings."""
    names = ("vocabulary_size", "hidden_dim", "cutoffs", "division_factor", "project_same_dim")
    settings = {name: getattr(config, name) for name in names}
    return settings | {"embedding_dim": config.embedding_dim or config.hidden_dim}


def embedded(token_id, weights, config):
    """The embedding of one token: (D,)."""
    return adaptive_reference.embedding(
        token_id,
        weights["embedding_tables"],
        weights["embedding_projections"],
        vocabulary_settings(config),
    )


def token_log_probs(hidden, weights, config):
    """Log-probabilities of the whole vocabulary after one hidden state (D,)."""
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
    """Weights of any attention layer as the dict that this module reads."""
    weights = {"num_heads": layer.num_heads, "output": _float64(layer.output_projection.kernel)}
    for name in ("query", "key", "value", "position"):
        if hasattr(layer, name):
            weights[name] = _float64(getattr(layer, name).kernel)
    given = {"content_bias": content_bias, "position_bias": position_bias}
    for name in ("content_bias", "position_bias", "distance_keys", "distance_bias"):
        bias = given.get(name)
        bias = getattr(layer, name, None) if bias is None else bias
        if bias is not None:
            weights[name] = _float64(bias)
    return weights


def gate_weights(gate):
    """Weights of a `GRUGate` by their names in the paper."""
    kernels = [gate.of_outputs.kernel, gate.of_inputs.kernel, gate.of_reset.kernel]
    joint = np.concatenate([_float64(kernel) for kernel in kernels], axis=1)
    names = ("W_r", "W_z", "W_g", "U_r", "U_z", "U_g")
    return dict(zip(names, np.split(joint, 6, axis=1), strict=True)) | {"b_g": _float64(gate.bias)}


def block_weights(block, content_bias=None, position_bias=None):
    """Weights of a `DecoderBlock` as the dict that this module reads."""
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
    """Weights of a `TransformerXL` as the dict that this module reads."""
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
