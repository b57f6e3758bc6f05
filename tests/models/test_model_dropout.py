"""Where dropout acts in a whole model, and with which masks."""

import numpy as np
import pytest
from keras import ops

from tests.models.variants import ENCODINGS, B, T, filled_memory, made, score, token_ids
from tests.reference import max_difference
from txl_tf import functional
from txl_tf.models.memory import Memory


def seed_of(first, second):
    return ops.convert_to_tensor([first, second], "int32")


@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_dropout_is_a_function_of_the_seed_and_rests_without_training(position_encoding):
    rates = {"dropout": 0.3, "attention_dropout": 0.3}
    model = made(position_encoding, num_layers=1, variational_dropout=True, **rates)
    memory, tokens = filled_memory(model), token_ids(T)

    def hidden(first, second, training=True):
        return model(tokens, memory, dropout_seed=seed_of(first, second), training=training)[0]

    assert max_difference(hidden(1, 2), hidden(1, 2)) == 0.0
    assert max_difference(hidden(1, 2), hidden(2, 2)) > 1e-2
    assert max_difference(hidden(1, 2, training=False), model(tokens, memory)[0]) == 0.0


def test_memory_remembers_what_dropout_left_of_the_inputs():
    """A block's memory is what it read, so that both segments see the same."""
    model = made(dropout=0.5)
    hidden_states, memory = model.hidden_states(
        token_ids(6), model.initial_memory(B), dropout_seed=seed_of(1, 2), training=True
    )
    for state, inputs in zip(memory.states, hidden_states[:-1], strict=True):
        assert max_difference(state, inputs) == 0.0
    assert np.any(ops.convert_to_numpy(memory.states[0]) == 0.0)


@pytest.mark.parametrize("position_encoding", ["transformer_xl", "sinusoidal"])
def test_rows_with_seeds_of_their_own_are_the_same_in_any_batch(position_encoding):
    """Replicas and accumulated parts draw the masks that one batch of all rows draws."""
    model = made(position_encoding, dropout=0.3, attention_dropout=0.3)
    memory, tokens = filled_memory(model), token_ids(T + 1)
    seed = ops.convert_to_tensor([1, 2], "int32")

    def nll(places, rows):
        part = Memory(tuple(each[rows] for each in memory.states), memory.valid_length[rows])
        seeds = functional.row_seeds(seed, ops.convert_to_tensor(places, "int32"))
        return score(model, tokens[rows], part, dropout_seed=seeds, training=True)[0]

    whole = ops.convert_to_numpy(nll([0, 1], slice(0, 2)))
    for row in range(B):
        alone = nll([row], slice(row, row + 1))
        assert max_difference(alone, whole[row : row + 1]) <= 1e-5
    assert max_difference(nll([5, 1], slice(0, 2))[:1], whole[:1]) > 1e-2
    by_one_seed, _ = score(model, tokens, memory, dropout_seed=seed, training=True)
    assert max_difference(by_one_seed, whole) == 0.0
