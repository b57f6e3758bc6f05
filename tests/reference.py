"""Transformer-XL from the paper's formulas, with loops: the oracle of the tests.

Every function here follows Dai et al. (2019), Section 3.3, one pair of a query
and a key at a time, in float64. It shares no code and no trick with the
package: no shift, no mask tensor, no batched product. It is slow and meant to
be read beside the paper.

Positions of one segment are 0 .. T - 1; the memory before it has the positions
-M .. -1, so that `query - key` is the distance.

Weights of an attention layer are a dict of arrays: `query`, `key`, `value`,
`position` of shape (D, N * H), `output` (N * H, D), `content_bias` and
`position_bias` (N, H). Those of a block add `inner_kernel`, `inner_bias`,
`outer_kernel`, `outer_bias` and the gains and offsets of the two
normalisations.
"""

import math

import numpy as np


def max_difference(first, second):
    """Largest absolute difference of two arrays that must have one shape."""
    first, second = np.asarray(first, "float64"), np.asarray(second, "float64")
    assert first.shape == second.shape, f"{first.shape} is not {second.shape}"
    return float(np.max(np.abs(first - second), initial=0.0))


def sinusoid(distance, hidden_dim, clamp_length=None):
    """The row of `R` for one distance: all sines, then all cosines."""
    if clamp_length is not None:
        distance = min(distance, clamp_length)
    row = np.zeros(hidden_dim)
    for pair in range(hidden_dim // 2):
        angle = distance / 10000.0 ** (2 * pair / hidden_dim)
        row[pair] = math.sin(angle)
        row[hidden_dim // 2 + pair] = math.cos(angle)
    return row


def is_visible(
    query, key, valid_length, memory_length, same_length, same_length_keys="memory_and_self"
):
    """Whether the query at one position may attend to the key at another."""
    if key > query:
        return False  # the future
    if key < -valid_length:
        return False  # a slot of the memory that was never filled
    # With `same_length` a query sees itself and the M positions before it, or M with itself.
    seen_before = memory_length if same_length_keys == "memory_and_self" else memory_length - 1
    return not same_length or query - key <= seen_before


def softmax(scores):
    """Probabilities of a list of scores; a score of None is hidden."""
    highest = max(score for score in scores if score is not None)
    powers = [0.0 if score is None else math.exp(score - highest) for score in scores]
    return [power / sum(powers) for power in powers]


def attend(query_at, queries, keys, values, position_keys, biases, sees):
    """What one head of one row reads at one query.

    Args:
        query_at: int. Position of the query.
        queries: dict, position to (H,) array; so are `keys` and `values`.
        keys: dict.
        values: dict.
        position_keys: dict, distance to (H,) array: `W_{k,R} R`.
        biases: pair of (H,) arrays, `u` and `v`.
        sees: function of a key position.
    """
    query, (content_bias, position_bias) = queries[query_at], biases
    scores = []
    for key_at in keys:
        if not sees(key_at):
            scores.append(None)
            continue
        position_key = position_keys[query_at - key_at]
        term_a = query @ keys[key_at]  # content-based addressing
        term_b = query @ position_key  # content-dependent positional bias
        term_c = content_bias @ keys[key_at]  # global content bias
        term_d = position_bias @ position_key  # global positional bias
        scores.append((term_a + term_b + term_c + term_d) / math.sqrt(len(query)))
    result = np.zeros(len(query))
    for probability, key_at in zip(softmax(scores), values, strict=True):
        result += probability * values[key_at]
    return result


def relative_attention(
    inputs, memory, weights, valid_length=None, same_length=False, clamp_length=None
):
    """One attention layer, without residual.

    Args:
        inputs: array (B, T, D).
        memory: array (B, M, D).
        weights: dict, see above.
        valid_length: filled positions of the memory per row; None is all.
        same_length: bool.
        clamp_length: optional int.

    Returns:
        Array (B, T, D).
    """
    inputs, memory = np.asarray(inputs, "float64"), np.asarray(memory, "float64")
    num_rows, segment_length, hidden_dim = inputs.shape
    memory_length = memory.shape[1]
    num_heads, head_dim = weights["content_bias"].shape
    outputs = np.zeros_like(inputs)
    for row in range(num_rows):
        filled = memory_length if valid_length is None else int(valid_length[row])
        hidden = {at: inputs[row, at] for at in range(segment_length)}
        context = {at: memory[row, memory_length + at] for at in range(-memory_length, 0)} | hidden
        for head in range(num_heads):
            columns = slice(head * head_dim, (head + 1) * head_dim)
            queries = {at: vector @ weights["query"][:, columns] for at, vector in hidden.items()}
            keys = {at: vector @ weights["key"][:, columns] for at, vector in context.items()}
            values = {at: vector @ weights["value"][:, columns] for at, vector in context.items()}
            position_keys = {
                distance: sinusoid(distance, hidden_dim, clamp_length)
                @ weights["position"][:, columns]
                for distance in range(memory_length + segment_length)
            }
            biases = weights["content_bias"][head], weights["position_bias"][head]
            for query_at in range(segment_length):

                def sees(key_at, query_at=query_at, filled=filled):
                    return is_visible(query_at, key_at, filled, memory_length, same_length)

                read = attend(query_at, queries, keys, values, position_keys, biases, sees)
                # Concatenating the heads and projecting is a sum over heads.
                outputs[row, query_at] += read @ weights["output"][columns]
    return outputs


def layer_norm(vector, gain, offset, epsilon):
    """Normalises one vector by its own mean and variance."""
    mean = sum(vector) / len(vector)
    variance = sum((value - mean) ** 2 for value in vector) / len(vector)
    return (vector - mean) / math.sqrt(variance + epsilon) * gain + offset


def feed_forward(vector, weights):
    """Two affine maps of one vector, with a ReLU between them."""
    inner = vector @ weights["inner_kernel"] + weights["inner_bias"]
    inner = np.array([max(value, 0.0) for value in inner])
    return inner @ weights["outer_kernel"] + weights["outer_bias"]


def decoder_block(inputs, memory, weights, epsilon=1e-12, **attention_options):
    """Attention and feed-forward, each with residual and then normalisation."""
    inputs = np.asarray(inputs, "float64")
    attended = relative_attention(inputs, memory, weights, **attention_options)
    outputs = np.zeros_like(inputs)
    for row in range(inputs.shape[0]):
        for at in range(inputs.shape[1]):
            hidden = layer_norm(
                inputs[row, at] + attended[row, at],
                weights["attention_norm_gain"],
                weights["attention_norm_offset"],
                epsilon,
            )
            outputs[row, at] = layer_norm(
                hidden + feed_forward(hidden, weights),
                weights["feed_forward_norm_gain"],
                weights["feed_forward_norm_offset"],
                epsilon,
            )
    return outputs


def extended_memory(memory, inputs):
    """The last M vectors of memory and inputs, one row at a time."""
    memory_length = memory.shape[1]
    rows = []
    for old, new in zip(memory, inputs, strict=True):
        vectors = [*old, *new]
        rows.append(vectors[len(vectors) - memory_length :])
    return np.array(rows).reshape(memory.shape)


def token_nll(hidden, target_id, table, bias):
    """Nats of one target: tied softmax over the whole vocabulary."""
    logits = [float(hidden @ table[token] + bias[token]) for token in range(len(table))]
    return -math.log(softmax(logits)[target_id])


def transformer_xl(weights, config, token_ids, target_ids, states, valid_length):
    """The whole model over one segment.

    Args:
        weights: dict, from `transformer_xl_weights`.
        config: anything with `same_length`, `clamp_length` and
            `layer_norm_epsilon`.
        token_ids: int array (B, T).
        target_ids: int array (B, T).
        states: list of L arrays (B, M, D).
        valid_length: list of B ints.

    Returns:
        Tuple of nll (B, T), hidden (B, T, D), the next states and the next
        valid lengths.
    """
    table = weights["table"]
    hidden = np.array([[table[token] for token in row] for row in token_ids])
    hidden = hidden * math.sqrt(table.shape[1])
    next_states = []
    for block_weights, state in zip(weights["blocks"], states, strict=True):
        state = np.asarray(state, "float64")
        next_states.append(extended_memory(state, hidden))
        hidden = decoder_block(
            hidden,
            state,
            block_weights,
            epsilon=config.layer_norm_epsilon,
            valid_length=valid_length,
            same_length=config.same_length,
            clamp_length=config.clamp_length,
        )
    nll = np.zeros(hidden.shape[:2])
    for row, targets in enumerate(target_ids):
        for at, target_id in enumerate(targets):
            nll[row, at] = token_nll(hidden[row, at], target_id, table, weights["softmax_bias"])
    memory_length, segment_length = states[0].shape[1], hidden.shape[1]
    next_valid_length = [min(filled + segment_length, memory_length) for filled in valid_length]
    return nll, hidden, next_states, next_valid_length


def attention_weights(layer, content_bias=None, position_bias=None):
    """Weights of a `RelativeAttention` as the dict that this module reads."""
    weights = {
        name: _float64(getattr(layer, name).kernel)
        for name in ("query", "key", "value", "position")
    }
    weights["output"] = _float64(layer.output_projection.kernel)
    weights["content_bias"] = _float64(layer.content_bias if layer.own_biases else content_bias)
    weights["position_bias"] = _float64(layer.position_bias if layer.own_biases else position_bias)
    return weights


def block_weights(block, content_bias=None, position_bias=None):
    """Weights of a `DecoderBlock` as the dict that this module reads."""
    return {
        **attention_weights(block.attention, content_bias, position_bias),
        "attention_norm_gain": _float64(block.attention_norm.gamma),
        "attention_norm_offset": _float64(block.attention_norm.beta),
        "inner_kernel": _float64(block.feed_forward.inner.kernel),
        "inner_bias": _float64(block.feed_forward.inner.bias),
        "outer_kernel": _float64(block.feed_forward.outer.kernel),
        "outer_bias": _float64(block.feed_forward.outer.bias),
        "feed_forward_norm_gain": _float64(block.feed_forward_norm.gamma),
        "feed_forward_norm_offset": _float64(block.feed_forward_norm.beta),
    }


def transformer_xl_weights(model):
    """Weights of a `TransformerXL` as the dict that this module reads."""
    shared = ()
    if model.config.share_attention_biases:
        shared = (model.content_bias, model.position_bias)
    return {
        "table": _float64(model.embedding.tables[0]),
        "softmax_bias": _float64(model.softmax.biases[0]),
        "blocks": [block_weights(block, *shared) for block in model.blocks],
    }


def _float64(variable):
    return np.asarray(variable.numpy() if hasattr(variable, "numpy") else variable, "float64")
