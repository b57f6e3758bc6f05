"""The decoder block: dropout, gates, and a memory of its own."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from tests.layer_checks import causal_mask, random, randomize_weights
from tests.reference import max_difference
from tests.small_models import small_config
from txl_tf import functional
from txl_tf.layers.decoder_block import DecoderBlock

B, T, D = 2, 4, 6
CONFIG = small_config(T, T, width=D, dropout=0.0)


def made(batch_size=None, stateful=False, **changes):
    block = DecoderBlock(CONFIG.replace(**changes), stateful=stateful)
    block.build((batch_size, None, D))
    randomize_weights(block)
    return block


@pytest.mark.parametrize("variational_dropout", [False, True])
def test_variational_dropout_draws_one_mask_for_all_positions_of_a_row(variational_dropout):
    """A branch that returns ones shows its dropped positions in the result."""
    block = DecoderBlock(
        CONFIG.replace(pre_norm=True, dropout=0.5, variational_dropout=variational_dropout)
    )
    block.build((None, None, 200))
    for weight in block.trainable_variables:
        weight.assign(np.zeros(weight.shape))
    block.feed_forward.outer.bias.assign(np.ones(200))
    inputs = np.zeros((3, T, 200), "float32")
    seed = ops.convert_to_tensor([1, 2], "int32")
    kept = ops.convert_to_numpy(block(inputs, dropout_seed=seed, training=True)) != 0.0
    assert abs(kept.mean() - 0.5) < 0.1
    agreements = [np.mean(kept[:, 0] == kept[:, at]) for at in range(1, T)]
    if variational_dropout:
        assert agreements == [1.0] * (T - 1)
    else:
        assert max(agreements) < 0.65
    for row in (1, 2):
        assert np.mean(kept[0] == kept[row]) < 0.65


def test_gates_are_almost_open_for_the_inputs_at_first():
    """Their bias of 2 lets the sigmoid of 2 of the inputs pass, twice."""
    block, inputs = (
        DecoderBlock(CONFIG.replace(pre_norm=True, residual_gate="gru")),
        random(B, T, D),
    )
    assert max_difference(block(inputs), inputs / (1 + math.exp(-2)) ** 2) < 0.05


@pytest.mark.parametrize("memory_length", [2, 6])
def test_stateful_calls_equal_calls_that_pass_memory(memory_length):
    """Three segments: the memory fills, then moves on; it is empty again after a reset."""
    stateful = made(batch_size=B, stateful=True, memory_length=memory_length)
    passing = made()
    memory, valid_length = ops.zeros((B, memory_length, D)), ops.zeros((B,), "int32")
    for number in range(3):
        segment = random(B, T, D, seed=number)
        mask = causal_mask(T, memory_length, valid_length)
        expected = passing(segment, memory=memory, attention_mask=mask)
        assert max_difference(stateful(segment), expected) <= 1e-6
        memory = functional.next_memory(memory, segment)
        valid_length = functional.next_valid_length(valid_length, memory_length, T)
        np.testing.assert_array_equal(stateful.memory.numpy(), memory)
        np.testing.assert_array_equal(stateful.valid_length.numpy(), valid_length)
    stateful.reset_state()
    assert max_difference(stateful(segment), passing(segment)) <= 1e-5


def test_a_stateful_block_needs_a_batch_size():
    with pytest.raises(ValueError, match=r"needs a fixed batch size.*Received: inputs_shape="):
        made(stateful=True, memory_length=T)


def test_a_stateful_block_trains_in_a_functional_model_and_is_saved_without_memory(tmp_path):
    block = DecoderBlock(CONFIG, stateful=True)
    symbol = keras.Input(batch_shape=(B, T, D))
    model = keras.Model(symbol, block(symbol))
    model.compile("sgd", "mean_squared_error")
    inputs = random(2 * B - 1, T, D)
    model.fit(inputs, inputs, batch_size=B, shuffle=False, verbose=0)  # the last batch has one row
    before = block.memory.numpy()
    np.testing.assert_array_equal(before[:, -T:], inputs[[2, 1]])
    for read in (model.evaluate, model.predict):
        with pytest.raises(ValueError, match=r"must not continue the memory of training"):
            read(inputs[:B], verbose=0)
    np.testing.assert_array_equal(block.memory.numpy(), before)
    with pytest.raises(ValueError, match=r"at most 2 rows.*Received: a batch of 3"):
        block(inputs)
    assert [each.shape for each in block.variables[len(block.weights) :]] == [(B, T, D), (B,)]
    model.save(tmp_path / "stateful.keras")
    restored = keras.saving.load_model(tmp_path / "stateful.keras")
    block.reset_state()
    assert max_difference(restored(inputs[:B]), model(inputs[:B])) == 0.0
