"""Dropout masks of a whole model belong to rows, wherever these are computed."""

import pytest
from keras import ops

from tests.models.variants import B, T, filled_memory, made, score, token_ids
from tests.reference import max_difference
from txl_tf import functional
from txl_tf.models.memory import Memory


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
