import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.layer_checks import random, randomize_weights
from tests.reference import max_difference
from tests.small_models import small_config
from txl_tf import functional
from txl_tf.config.model import LEARNED_ENCODINGS
from txl_tf.layers.decoder_block import DecoderBlock

B, T, D = 2, 4, 6
ENCODINGS = ["transformer_xl", "shaw", "shaw_two_terms", "sinusoidal", "learned"]
CONFIG = small_config(T, T, width=D, dropout=0.0)


def made(batch_size=None, stateful=False, **changes):
    block = DecoderBlock(CONFIG.replace(**changes), stateful=stateful)
    block.build((batch_size, None, D))
    randomize_weights(block)
    return block


@pytest.mark.parametrize(
    ("position_encoding", "pre_norm"),
    [*((encoding, False) for encoding in ENCODINGS), ("transformer_xl", True)],
)
def test_no_gradient_flows_into_memory(position_encoding, pre_norm):
    has_table = position_encoding in LEARNED_ENCODINGS
    num_positions = 5 if has_table else None
    block = made(
        position_encoding=position_encoding, num_positions=num_positions, pre_norm=pre_norm
    )
    inputs, memory = tf.constant(random(B, T, D)), tf.constant(random(B, 3, D, seed=1))
    with tf.GradientTape() as tape:
        tape.watch([inputs, memory])
        loss = tf.reduce_sum(block(inputs, memory=memory) ** 3)
    into_inputs, into_memory = tape.gradient(loss, [inputs, memory])
    assert np.abs(into_inputs.numpy()).max() > 1e-3
    assert into_memory is None or not np.any(into_memory.numpy())


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


def test_gates_of_a_large_bias_let_the_inputs_pass():
    block = made(pre_norm=True, residual_gate="gru")
    inputs = random(B, T, D)
    assert max_difference(block(inputs), inputs) > 0.1
    for gate in (block.attention_gate, block.feed_forward_gate):
        gate.bias.assign(np.full(D, 30.0))
    assert max_difference(block(inputs), inputs) < 1e-6
    initial = DecoderBlock(CONFIG.replace(pre_norm=True, residual_gate="gru"))
    assert max_difference(initial(inputs), inputs * (1 - 1 / (1 + math.exp(2))) ** 2) < 0.05


@pytest.mark.parametrize("memory_length", [2, 6])
def test_stateful_calls_equal_calls_that_pass_memory(memory_length):
    """Three segments: the memory fills, then moves on; it is empty again after a reset."""
    stateful = made(batch_size=B, stateful=True, memory_length=memory_length)
    passing = made()
    memory, valid_length = ops.zeros((B, memory_length, D)), ops.zeros((B,), "int32")
    for number in range(3):
        segment = random(B, T, D, seed=number)
        mask = functional.causal_memory_mask(T, memory_length, valid_length)
        expected = passing(segment, memory=memory, attention_mask=mask)
        assert max_difference(stateful(segment), expected) <= 1e-6
        memory = functional.next_memory(memory, segment)
        valid_length = functional.next_valid_length(valid_length, memory_length, T)
        np.testing.assert_array_equal(stateful.memory.numpy(), memory)
        np.testing.assert_array_equal(stateful.valid_length.numpy(), valid_length)
    stateful.reset_state()
    assert max_difference(stateful(segment), passing(segment)) <= 1e-5


def test_memory_of_a_stateful_block_is_no_weight_and_not_saved(tmp_path):
    block = made(batch_size=B, stateful=True, memory_length=T)
    assert len(block.weights) == 15
    assert [each.shape for each in block.variables[15:]] == [(B, T, D), (B,)]
    symbol = keras.Input(batch_shape=(B, T, D))
    model = keras.Model(symbol, block(symbol))
    first = model(random(B, T, D))
    model.save(tmp_path / "stateful.keras")
    restored = keras.saving.load_model(tmp_path / "stateful.keras")
    assert max_difference(restored(random(B, T, D)), first) == 0.0


def test_a_stateful_block_needs_a_batch_size_a_memory_and_no_other():
    with pytest.raises(ValueError, match=r"needs a fixed batch size.*Received: inputs_shape="):
        made(stateful=True, memory_length=T)
    with pytest.raises(ValueError, match=r"a `memory_length` above 0\. Received: memory_length=0"):
        made(batch_size=B, stateful=True, memory_length=0)
    block = made(batch_size=B, stateful=True, memory_length=T)
    with pytest.raises(ValueError, match=r"keeps its own memory\. Received: memory="):
        block(random(B, T, D), memory=random(B, T, D))


def test_a_stateful_block_trains_in_a_functional_model_and_is_not_evaluated_there():
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
            read(inputs[:B], inputs[:B], verbose=0) if read == model.evaluate else read(inputs[:B])
    np.testing.assert_array_equal(block.memory.numpy(), before)
    with pytest.raises(ValueError, match=r"at most 2 rows.*Received: a batch of 3"):
        block(inputs)
