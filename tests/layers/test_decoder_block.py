import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.layer_checks import (
    check_config,
    check_layer,
    drawn_seeds,
    needs_tensorflow,
    random,
    randomize_weights,
    tf,
)
from tests.slow_case import slow_case
from txl_tf import functional
from txl_tf.layers.decoder_block import DecoderBlock
from txl_tf.layers.positions import Positions

B, T, D, N, H, F = 2, 4, 6, 2, 3, 10
SIZES = {"num_heads": N, "head_dim": H, "intermediate_dim": F}


def made(batch_size=None, **kwargs):
    block = DecoderBlock(**SIZES, **kwargs)
    block.build((batch_size, None, D))
    randomize_weights(block)
    return block


@pytest.fixture(scope="module")
def block():
    return made()


@pytest.mark.parametrize("memory_length", [slow_case(0), 3])
def test_basics(memory_length):
    inputs = {"inputs": random(B, T, D)}
    if memory_length:
        inputs["memory"] = random(B, memory_length, D, seed=1)
    check_layer(
        DecoderBlock,
        init_kwargs={
            **SIZES,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "positions": {"clamp_length": 5},
        },
        inputs=inputs,
        expected_output_shape=(B, T, D),
        num_weights=15,
        batched=tuple(inputs),
        tolerance=1e-5,
    )


@pytest.mark.parametrize("same_length", [False, True])
@pytest.mark.parametrize("clamp_length", [None, 2])
@pytest.mark.parametrize("memory_length", [0, 2, 4, 6])
def test_matches_the_oracle(memory_length, clamp_length, same_length):
    options = {"clamp_length": clamp_length, "same_length": same_length}
    block = made(positions=Positions(**options))
    inputs, memory = random(B, T, D), random(B, memory_length, D, seed=1)
    expected = reference.decoder_block(inputs, memory, reference.block_weights(block), **options)
    assert reference.max_difference(block(inputs, memory=memory), expected) <= 1e-5


def test_normalisation_uses_the_given_epsilon():
    block = made(layer_norm_epsilon=0.5)
    inputs, memory = random(B, T, D), random(B, 2, D, seed=1)
    weights = reference.block_weights(block)
    outputs = block(inputs, memory=memory)
    expected = reference.decoder_block(inputs, memory, weights, epsilon=0.5)
    assert reference.max_difference(outputs, expected) <= 1e-5
    other = reference.decoder_block(inputs, memory, weights, epsilon=1e-12)
    assert reference.max_difference(outputs, other) > 1e-2


@pytest.mark.parametrize("memory_length", [4, 6])
def test_two_segments_with_memory_equal_one_pass_over_both(block, memory_length):
    both = random(B, 2 * T, D)
    first, second = both[:, :T], both[:, T:]
    one_pass = ops.convert_to_numpy(block(both))
    empty = ops.zeros((B, memory_length, D))
    nothing = ops.zeros((B,), "int32")
    outputs_of_first = block(
        first,
        memory=empty,
        attention_mask=functional.causal_memory_mask(T, memory_length, nothing),
    )
    valid_length = functional.next_valid_length(nothing, memory_length, T)
    outputs_of_second = block(
        second,
        memory=functional.next_memory(empty, first),
        attention_mask=functional.causal_memory_mask(T, memory_length, valid_length),
    )
    assert reference.max_difference(outputs_of_first, one_pass[:, :T]) <= 1e-5
    assert reference.max_difference(outputs_of_second, one_pass[:, T:]) <= 1e-5
    # The second segment does depend on the first, or this would prove nothing.
    assert reference.max_difference(block(second), one_pass[:, T:]) > 1e-3


def test_a_changed_token_leaves_earlier_outputs_alone(block):
    inputs = random(B, T, D)
    before = ops.convert_to_numpy(block(inputs))
    inputs[:, 2] += 1.0
    after = ops.convert_to_numpy(block(inputs))
    assert reference.max_difference(after[:, :2], before[:, :2]) <= 1e-6
    assert np.all(np.abs(after[:, 2:] - before[:, 2:]).max(axis=-1) > 1e-4)


def test_dropout_is_a_function_of_the_seed():
    block = made(dropout=0.3, attention_dropout=0.3)
    inputs = random(B, T, D)

    def outputs(seed, training=True):
        seed = ops.convert_to_tensor(seed, "int32")
        return block(inputs, dropout_seed=seed, training=training)

    assert reference.max_difference(outputs([1, 2]), outputs([1, 2])) == 0.0
    assert reference.max_difference(outputs([1, 2]), outputs([2, 2])) > 1e-2
    assert reference.max_difference(outputs([1, 2], training=False), block(inputs)) == 0.0


def test_the_dropouts_of_one_block_draw_different_masks(monkeypatch):
    block = made(dropout=0.3, attention_dropout=0.3)
    seeds = drawn_seeds(monkeypatch)
    block(random(B, T, D), dropout_seed=ops.convert_to_tensor([1, 2], "int32"), training=True)
    assert len(seeds) == 4  # probabilities, attention, inner, feed-forward
    assert len(set(seeds)) == 4


@pytest.mark.parametrize("memory_length", [2, 4, 6])
def test_stateful_calls_equal_calls_that_pass_memory(memory_length):
    """Three segments: the memory fills, then moves on."""
    stateful = made(batch_size=B, stateful=True, memory_length=memory_length)
    passing = made()
    memory, valid_length = ops.zeros((B, memory_length, D)), ops.zeros((B,), "int32")
    for number in range(3):
        segment = random(B, T, D, seed=number)
        mask = functional.causal_memory_mask(T, memory_length, valid_length)
        expected = passing(segment, memory=memory, attention_mask=mask)
        assert reference.max_difference(stateful(segment), expected) <= 1e-6
        memory = functional.next_memory(memory, segment)
        valid_length = functional.next_valid_length(valid_length, memory_length, T)
        np.testing.assert_array_equal(stateful.memory.numpy(), memory)
        np.testing.assert_array_equal(stateful.valid_length.numpy(), valid_length)


def test_two_stateful_calls_equal_one_pass_and_reset_state_forgets():
    stateful, passing = made(batch_size=B, stateful=True, memory_length=T), made()
    both = random(B, 2 * T, D)
    one_pass = ops.convert_to_numpy(passing(both))
    for _ in range(2):  # the second round only works if the reset forgot all
        assert reference.max_difference(stateful(both[:, :T]), one_pass[:, :T]) <= 1e-5
        assert reference.max_difference(stateful(both[:, T:]), one_pass[:, T:]) <= 1e-5
        stateful.reset_state()
        assert not np.any(stateful.memory.numpy())
        assert not np.any(stateful.valid_length.numpy())


def test_memory_of_a_stateful_block_is_no_weight_and_not_saved(tmp_path):
    block = made(batch_size=B, stateful=True, memory_length=T)
    assert len(block.weights) == 15
    assert [each.name for each in block.variables[15:]] == ["memory", "valid_length"]
    check_config(block)
    symbol = keras.Input(batch_shape=(B, T, D))
    model = keras.Model(symbol, block(symbol))
    first = model(random(B, T, D))
    model.save(tmp_path / "stateful.keras")
    restored = keras.saving.load_model(tmp_path / "stateful.keras")
    assert reference.max_difference(restored(random(B, T, D)), first) == 0.0


def test_stateful_block_carries_memory_through_fit_in_data_order():
    symbol = keras.Input(batch_shape=(B, T, D))
    block = DecoderBlock(**SIZES, stateful=True, memory_length=2 * T)
    model = keras.Model(symbol, block(symbol))
    model.compile(optimizer="sgd", loss="mean_squared_error")
    segments = random(2 * B, T, D)
    model.fit(segments, np.zeros_like(segments), batch_size=B, shuffle=False, verbose=0)
    read = np.concatenate([segments[:B], segments[B:]], axis=1)
    np.testing.assert_array_equal(block.memory.numpy(), read)
    np.testing.assert_array_equal(block.valid_length.numpy(), [2 * T] * B)


def test_building_symbolically_leaves_the_memory_empty():
    block = DecoderBlock(**SIZES, stateful=True, memory_length=T)
    block(keras.Input(batch_shape=(B, T, D)))
    np.testing.assert_array_equal(block.valid_length.numpy(), [0] * B)


def test_stateful_block_refuses_a_memory_argument():
    block = made(batch_size=B, stateful=True, memory_length=T)
    with pytest.raises(ValueError, match=r"keeps its own memory\. Received: memory="):
        block(random(B, T, D), memory=random(B, T, D))


def test_stateful_block_needs_a_fixed_batch_size():
    with pytest.raises(ValueError, match=r"needs a fixed batch size.*Received: inputs_shape="):
        made(stateful=True, memory_length=T)


@pytest.mark.parametrize("stateful", [False, True])
def test_reset_state_needs_a_memory(stateful):
    block = DecoderBlock(**SIZES, stateful=stateful, memory_length=T)
    with pytest.raises(ValueError, match=rf"Received: stateful={stateful}, built=False"):
        block.reset_state()


@needs_tensorflow
def test_stateful_block_compiled_by_xla_equals_eager():
    eager, compiled = (made(batch_size=B, stateful=True, memory_length=T) for _ in range(2))
    run = tf.function(compiled, jit_compile=True)
    for number in range(3):
        segment = tf.constant(random(B, T, D, seed=number))
        assert reference.max_difference(run(segment), eager(segment)) <= 1e-5
