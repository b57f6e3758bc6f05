"""Every combination of positions, recurrence and pre norm, against loops."""

import pytest
from keras import ops

from tests import reference_variants
from tests.models.variants import (
    COMBINATIONS,
    B,
    T,
    assert_segments_match,
    assert_two_segments_equal_one_pass,
    score,
    shared,
    token_ids,
)
from tests.reference import max_difference


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
        ("shaw_two_terms", {"num_positions": 2, "same_length": True}),
        ("sinusoidal", {"same_length": True, "clamp_length": 3}),
        ("learned", {"num_positions": 1, "same_length": True}),
        ("learned", {"num_positions": 100, "memory_length": 3}),
        ("transformer_xl", {"embedding_dim": 4}),
        ("learned", {"embedding_dim": 10, "tie_weights": False}),
    ],
)
def test_other_options_match_the_oracle(position_encoding, changes):
    assert_segments_match(shared(position_encoding, **changes), oracle)


@pytest.mark.parametrize("position_encoding", ["transformer_xl", "shaw", "shaw_two_terms"])
def test_with_relative_positions_two_segments_equal_one_pass(position_encoding):
    table = {"num_positions": 2 * T} if position_encoding != "transformer_xl" else {}
    model = shared(position_encoding, pre_norm=True, **table)
    assert_two_segments_equal_one_pass(model, model.initial_memory(B, memory_length=0))


@pytest.mark.parametrize("position_encoding", ["transformer_xl", "learned"])
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
