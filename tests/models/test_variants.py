"""Every combination of positions, recurrence and pre norm, against loops."""

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference_variants
from tests.layer_checks import check_config
from tests.models.variants import (
    COMBINATIONS,
    ENCODINGS,
    B,
    M,
    T,
    assert_half_precision_is_close,
    assert_segments_match,
    assert_two_segments_equal_one_pass,
    config_of,
    filled_memory,
    score,
    shared,
    token_ids,
)
from tests.reference import max_difference
from txl_tf.models.transformer_xl import TransformerXL


def oracle(model, *arguments):
    weights = reference_variants.model_weights(model)
    return reference_variants.language_model(weights, model.config, *arguments)


@pytest.mark.parametrize(("position_encoding", "recurrence", "pre_norm"), COMBINATIONS)
def test_three_segments_match_the_oracle(position_encoding, recurrence, pre_norm):
    model = shared(position_encoding, recurrence=recurrence, pre_norm=pre_norm)
    assert_segments_match(model, oracle)


@pytest.mark.parametrize(
    ("position_encoding", "changes"),
    [
        ("transformer_xl", {"same_length": True, "same_length_keys": "memory"}),
        ("shaw", {"same_length": True, "same_length_keys": "memory"}),
        ("shaw", {"num_positions": 2, "num_layers": 3}),
        ("shaw", {"num_positions": 100}),
        ("shaw_two_terms", {"num_positions": 2, "same_length": True}),
        ("sinusoidal", {"same_length": True, "clamp_length": 3}),
        ("sinusoidal", {"clamp_length": 5, "memory_length": 3}),
        ("learned", {"num_positions": 1, "same_length": True}),
        ("learned", {"num_positions": 100, "memory_length": 3}),
        ("transformer_xl", {"share_attention_biases": True, "pre_norm": True}),
        ("transformer_xl", {"embedding_dim": 4}),
        ("learned", {"embedding_dim": 10, "tie_weights": False}),
    ],
)
def test_other_options_match_the_oracle(position_encoding, changes):
    assert_segments_match(shared(position_encoding, **changes), oracle)


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("position_encoding", ["transformer_xl", "shaw", "shaw_two_terms"])
def test_with_relative_positions_two_segments_equal_one_pass(position_encoding, pre_norm):
    table = {"num_positions": 2 * T} if position_encoding != "transformer_xl" else {}
    model = shared(position_encoding, pre_norm=pre_norm, **table)
    assert_two_segments_equal_one_pass(model, model.initial_memory(B, memory_length=0))


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
def test_with_absolute_positions_two_segments_differ_from_one_pass(position_encoding):
    """They are counted from the segment's end, and the first segment ends earlier.

    Its tokens have the positions T - 1 .. 0 when they are read and remembered,
    but 2T - 1 .. T in one pass. This is what relative positions are for.
    """
    table = {"num_positions": 2 * T} if position_encoding == "learned" else {}
    model = shared(position_encoding, num_layers=2, **table)
    tokens = token_ids(2 * T)
    one_pass, _ = model(tokens, model.initial_memory(B, memory_length=0))
    one_pass = ops.convert_to_numpy(one_pass)
    first, memory = model(tokens[:, :T], model.initial_memory(B))
    second, _ = model(tokens[:, T:], memory)
    assert max_difference(first, one_pass[:, :T]) > 1e-3
    assert max_difference(second, one_pass[:, T:]) > 1e-3


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned"])
def test_with_one_layer_the_last_segment_of_absolute_positions_equals_one_pass(position_encoding):
    """One layer remembers embeddings without positions, and both ends are one end."""
    table = {"num_positions": 2 * T} if position_encoding == "learned" else {}
    model = shared(position_encoding, num_layers=1, **table)
    tokens = token_ids(2 * T)
    one_pass, _ = model(tokens, model.initial_memory(B, memory_length=0))
    _, memory = model(tokens[:, :T], model.initial_memory(B))
    second, _ = model(tokens[:, T:], memory)
    assert max_difference(second, ops.convert_to_numpy(one_pass)[:, T:]) <= 1e-5


@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_the_order_of_what_was_read_matters(position_encoding):
    model, tokens = shared(position_encoding), token_ids(T)
    earlier = token_ids(5, seed=9)
    outputs = []
    for order in ([0, 1, 2, 3, 4], [3, 1, 2, 0, 4]):
        _, memory = model(earlier[:, order], model.initial_memory(B))
        outputs.append(ops.convert_to_numpy(model(tokens, memory)[0]))
    assert max_difference(*outputs) > 1e-3


@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_a_changed_token_leaves_earlier_outputs_alone(position_encoding):
    model = shared(position_encoding)
    memory, tokens = filled_memory(model), token_ids(T)
    before = ops.convert_to_numpy(model(tokens, memory)[0])
    tokens[:, 2] = (tokens[:, 2] + 1) % 11
    after = ops.convert_to_numpy(model(tokens, memory)[0])
    assert max_difference(after[:, :2], before[:, :2]) <= 1e-6
    assert np.all(np.abs(after[:, 2:] - before[:, 2:]).max(axis=-1) > 1e-5)


def test_learned_positions_are_one_table_per_block():
    model = shared("learned")
    tables = [ops.convert_to_numpy(block.position_table) for block in model.blocks]
    assert [table.shape for table in tables] == [(M + T - 1, 6)] * 2
    assert max_difference(*tables) > 1e-2


@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_without_recurrence_there_is_no_memory(position_encoding):
    model = shared(position_encoding, recurrence=False)
    memory = model.initial_memory(B)
    assert [tuple(state.shape) for state in memory.states] == [(B, 0, 6)] * 2
    tokens = token_ids(2 * T + 1)
    _, following = score(model, tokens[:, : T + 1], memory)
    assert [tuple(state.shape) for state in following.states] == [(B, 0, 6)] * 2
    assert ops.convert_to_numpy(following.valid_length).tolist() == [0, 0]
    fresh, _ = score(model, tokens[:, T:], memory)
    carried, _ = score(model, tokens[:, T:], following)
    assert max_difference(fresh, carried) == 0.0


def test_without_recurrence_a_memory_is_refused():
    model = shared(recurrence=False)
    with pytest.raises(ValueError, match=r"no memory\. Received: a memory of length 3"):
        model(token_ids(T), model.initial_memory(B, memory_length=3))


@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_without_recurrence_weights_are_those_of_a_model_with_it(position_encoding):
    """What a segment gives with empty memory is what a model without memory gives."""
    with_memory = shared(position_encoding)
    without = shared(position_encoding, recurrence=False)
    tokens = token_ids(T + 1)
    expected, _ = score(without, tokens, without.initial_memory(B))
    nll, _ = score(with_memory, tokens, with_memory.initial_memory(B))
    assert max_difference(nll, expected) <= 1e-5


@pytest.mark.parametrize(
    ("position_encoding", "attention", "more"),
    [
        ("transformer_xl", 6 * 6 + 2 * 6, 0),
        ("shaw", 6 + (M + T - 1) * (6 + 2), 0),
        ("shaw_two_terms", (M + T - 1) * 6, 0),
        ("sinusoidal", 0, 0),
        ("learned", 0, (M + T - 1) * 6),
    ],
)
def test_parameter_count_follows_the_formula(position_encoding, attention, more):
    """What an encoding adds to query, key, value and output."""
    model = TransformerXL(config_of(position_encoding))
    feed_forward = 2 * 6 * 10 + 10 + 6
    block = 4 * 6 * 6 + attention + more + 2 * 2 * 6 + feed_forward
    assert model.count_params() == 11 * 6 + 11 + 2 * block
    assert len({weight.path for weight in model.weights}) == len(model.weights)


@pytest.mark.parametrize(
    ("position_encoding", "changes"),
    [
        ("shaw", {"pre_norm": True}),
        ("sinusoidal", {"recurrence": False}),
        ("learned", {"tie_weights": False, "cutoffs": (4, 7), "embedding_dim": 4}),
        ("transformer_xl", {"variational_dropout": True, "initializer": "uniform"}),
    ],
)
def test_save_and_load_give_equal_scores(position_encoding, changes, tmp_path):
    model = shared(position_encoding, **changes)
    check_config(model)
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    assert restored.config == model.config
    tokens, memory = token_ids(T + 1), filled_memory(model)
    expected, _ = score(model, tokens, memory)
    assert max_difference(score(restored, tokens, memory)[0], expected) == 0.0


@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_half_precision_scores_close_to_float32(position_encoding):
    model, half = shared(position_encoding), shared(position_encoding, dtype="mixed_bfloat16")
    assert_half_precision_is_close(model, half, 0.1)
