"""The whole model against an oracle, with every option."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests import reference_variants
from tests.models.variants import (
    ADAPTIVE,
    COMBINATIONS,
    B,
    M,
    T,
    V,
    assert_segments_match,
    filled_memory,
    score,
    shared,
    token_ids,
)
from tests.reference import max_difference
from txl_tf.inference.engine import InferenceEngine


def oracle(model, *arguments):
    weights = reference_variants.model_weights(model)
    return reference_variants.language_model(weights, model.config, *arguments)


OPTIONS = {
    "share": {"share_attention_biases": True},
    "same": {"same_length": True},
    "clamp": {"clamp_length": 3},
    "all": {"share_attention_biases": True, "same_length": True, "clamp_length": 2},
    "epsilon": {"layer_norm_epsilon": 0.1, "num_layers": 3},
    "gates": {"pre_norm": True, "residual_gate": "gru"},
    "narrow": {"embedding_dim": 4},
    "clusters": ADAPTIVE,
    "own clusters": {**ADAPTIVE, "tie_weights": False, "share_tail_projections": True},
    "memory of a segment": {"memory_length": T},
    "same, short memory": {"same_length": True, "memory_length": 3},
    "clamp, short memory": {"clamp_length": 3, "memory_length": 3},
    "no memory": {"memory_length": 0},
}
KINDS = [(encoding, {"recurrence": r, "pre_norm": p}) for encoding, r, p in COMBINATIONS]
KINDS += [("transformer_xl", changes) for changes in OPTIONS.values()]


@pytest.mark.parametrize(("position_encoding", "changes"), KINDS)
def test_three_segments_match_the_oracle(position_encoding, changes):
    assert_segments_match(shared(position_encoding, **changes), oracle)


def test_without_recurrence_there_is_no_memory():
    model = shared(recurrence=False)
    memory, tokens = model.initial_memory(B), token_ids(2 * T + 1)
    _, following = score(model, tokens[:, : T + 1], memory)
    assert [tuple(state.shape) for state in following.states] == [(B, 0, 6)] * 2
    assert ops.convert_to_numpy(following.valid_length).tolist() == [0, 0]
    fresh, _ = score(model, tokens[:, T:], memory)
    assert max_difference(fresh, score(model, tokens[:, T:], following)[0]) == 0.0


@pytest.mark.parametrize("changes", [{}, {"position_encoding": "sinusoidal"}])
def test_embedded_inputs_take_the_place_of_token_ids(changes):
    model = shared(**changes)
    memory, tokens = filled_memory(model), token_ids(T)
    expected, expected_memory = model(tokens, memory)
    embedded = model.embedding(tokens)
    with tf.GradientTape() as tape:
        tape.watch(embedded)
        hidden, following = model(embedded, memory)
        total = tf.reduce_sum(hidden[:, -1] ** 2)
    assert max_difference(hidden, expected) == 0.0
    for state, other in zip(following.states, expected_memory.states, strict=True):
        assert max_difference(state, other) == 0.0
    engine = InferenceEngine(model)
    read, _ = engine.read(embedded, engine.initial_memory(B))
    assert max_difference(read, model(tokens, model.initial_memory(B))[0]) < 1e-6
    # The last position depends on every input of the segment.
    assert np.abs(tape.gradient(total, embedded).numpy()).max(axis=(0, 2)).min() > 0.0
    assert max_difference(model(embedded.numpy() + 1.0, memory)[0], expected) > 1e-2


def read(model, tokens, starts, segment_length=T):
    """Losses of a row that is read segment by segment, and the last memory."""
    memory = model.initial_memory(1)
    losses, lengths = [], []
    for first in range(0, len(tokens) - 1, segment_length):
        stop = min(first + segment_length, len(tokens) - 1)
        hidden, memory = model(
            tokens[None, first:stop],
            memory,
            document_starts=None if starts is None else starts[None, first:stop],
        )
        targets = tokens[None, first + 1 : stop + 1]
        losses.append(model.negative_log_likelihood(hidden, targets)[0])
        lengths.append(int(memory.valid_length[0]))
    return np.concatenate(losses), lengths


# Documents of one token, one that ends with a segment, one longer than the memory.
@pytest.mark.parametrize("sizes", [[3, 1, 2, 5, 20, 4], [6, 6, 12, 1, 1, 9], [35]])
def test_every_document_is_read_as_if_it_were_alone(sizes):
    model = shared()
    tokens = np.random.default_rng(1).integers(0, V, sum(sizes) + 1).astype("int32")
    begins = np.cumsum([0, *sizes[:-1]])
    starts = np.zeros(len(tokens), bool)
    starts[begins] = True
    losses, lengths = read(model, tokens, starts)
    for begin, size in zip(begins, sizes, strict=True):
        # Read alone in one segment, but for what the memory no longer reaches.
        reach = min(size, M)
        alone, _ = read(model, tokens[begin : begin + reach + 1], None, segment_length=reach)
        np.testing.assert_allclose(losses[begin : begin + reach], alone, atol=1e-5)
    ends = np.minimum(np.arange(T, len(tokens) + T - 1, T), len(tokens) - 1)
    expected = [min(end - begins[begins < end][-1], M) for end in ends]
    assert lengths == expected
