"""Positions and pre norm of a `DecoderBlock`, against loops."""

import numpy as np
import pytest
from keras import ops

from tests import reference_variants
from tests.layer_checks import check_layer, needs_tensorflow, random, randomize_weights, tf
from tests.reference import max_difference
from tests.slow_case import slow_case
from txl_tf import functional
from txl_tf.layers.decoder_block import DecoderBlock
from txl_tf.layers.positions import Positions

B, T, D = 2, 4, 6
SIZES = {"num_heads": 2, "head_dim": 3, "intermediate_dim": 10}
ENCODINGS = ["transformer_xl", "shaw", "shaw_two_terms", "sinusoidal", "learned"]
NUM_WEIGHTS = {
    "transformer_xl": 15,
    "shaw": 15,
    "shaw_two_terms": 13,
    "sinusoidal": 12,
    "learned": 13,
}


def positions(encoding, num_positions=5, **more):
    has_table = encoding in ("shaw", "shaw_two_terms", "learned")
    return Positions(encoding=encoding, num_positions=num_positions if has_table else None, **more)


def made(position_encoding, batch_size=None, mask=None, num_positions=5, **more):
    where = positions(position_encoding, num_positions, **(mask or {}))
    block = DecoderBlock(**SIZES, positions=where, **more)
    block.build((batch_size, None, D))
    randomize_weights(block)
    return block


@pytest.mark.parametrize(
    ("position_encoding", "pre_norm"),
    [slow_case("shaw", True), ("learned", False)],
)
def test_basics(position_encoding, pre_norm):
    check_layer(
        DecoderBlock,
        # A table has as many rows as there are distances, so that none is dead.
        init_kwargs={
            **SIZES,
            "positions": positions(position_encoding, T + 3),
            "pre_norm": pre_norm,
            "dropout": 0.1,
        },
        inputs={"inputs": random(B, T, D), "memory": random(B, 3, D, seed=1)},
        expected_output_shape=(B, T, D),
        num_weights=NUM_WEIGHTS[position_encoding],
        batched=("inputs", "memory"),
        tolerance=1e-5,
    )


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("position_encoding", ENCODINGS)
@pytest.mark.parametrize("memory_length", [0, 2, 6])
def test_matches_the_oracle(memory_length, position_encoding, pre_norm):
    masks = [{}, {"same_length": True}]
    if memory_length:
        masks.append({"same_length": True, "same_length_keys": "memory"})
    inputs, memory = random(B, T, D), random(B, memory_length, D, seed=1)
    for mask in masks:
        block = made(position_encoding, pre_norm=pre_norm, layer_norm_epsilon=1e-3, mask=mask)
        expected = reference_variants.decoder_block(
            inputs,
            memory,
            reference_variants.block_weights(block),
            epsilon=1e-3,
            pre_norm=pre_norm,
            **mask,
        )
        assert max_difference(block(inputs, memory=memory), expected) <= 1e-5, mask


def test_pre_norm_normalises_the_memory_but_not_what_is_added_to():
    block = made("transformer_xl", pre_norm=True)
    inputs, memory = random(B, T, D), random(B, 3, D, seed=1)
    outputs = block(inputs, memory=memory)
    # Normalisation undoes scale and offset of a vector, so that the memory's are lost.
    assert max_difference(block(inputs, memory=5.0 * memory + 2.0), outputs) <= 1e-5
    # The residual is not normalised: an offset goes through, and only that.
    moved = block(inputs + 2.0, memory=memory)
    assert max_difference(moved, ops.convert_to_numpy(outputs) + 2.0) <= 1e-5


@needs_tensorflow
@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_no_gradient_flows_into_memory(position_encoding, pre_norm):
    block = made(position_encoding, pre_norm=pre_norm)
    inputs, memory = tf.constant(random(B, T, D)), tf.constant(random(B, 3, D, seed=1))
    with tf.GradientTape() as tape:
        tape.watch([inputs, memory])
        loss = tf.reduce_sum(block(inputs, memory=memory) ** 3)
    into_inputs, into_memory = tape.gradient(loss, [inputs, memory])
    assert np.abs(into_inputs.numpy()).max() > 1e-3
    assert into_memory is None or not np.any(into_memory.numpy())


@needs_tensorflow
def test_learned_positions_of_the_memory_are_trained():
    """Those farther back than the segment is long are in the memory only."""
    block = made("learned", num_positions=T + 3)
    inputs, memory = random(B, T, D), random(B, 3, D, seed=1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(block(inputs, memory=memory) ** 3)
    gradient = tf.convert_to_tensor(tape.gradient(loss, block.position_table.value)).numpy()
    assert np.all(np.abs(gradient).max(axis=-1) > 1e-4)


def test_learned_positions_are_counted_from_the_end_of_the_segment():
    """The last token has row 0, whatever is before it; only the last output sees it."""
    block = made("learned")
    inputs, memory = random(B, T, D), random(B, 3, D, seed=1)
    before = ops.convert_to_numpy(block(inputs, memory=memory))
    table = ops.convert_to_numpy(block.position_table).copy()
    table[0] += np.linspace(-1.0, 1.0, D)
    block.position_table.assign(table)
    after = ops.convert_to_numpy(block(inputs, memory=memory))
    assert max_difference(after[:, :-1], before[:, :-1]) == 0.0
    assert max_difference(after[:, -1], before[:, -1]) > 1e-3


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_stateful_calls_equal_calls_that_pass_memory(position_encoding, pre_norm):
    options = {"pre_norm": pre_norm, "num_positions": 20}
    stateful = made(position_encoding, batch_size=B, stateful=True, memory_length=6, **options)
    passing = made(position_encoding, **options)
    memory, valid_length = ops.zeros((B, 6, D)), ops.zeros((B,), "int32")
    for number in range(3):
        segment = random(B, T, D, seed=number)
        mask = functional.causal_memory_mask(T, 6, valid_length)
        expected = passing(segment, memory=memory, attention_mask=mask)
        assert max_difference(stateful(segment), expected) <= 1e-6
        memory = functional.next_memory(memory, segment)
        valid_length = functional.next_valid_length(valid_length, 6, T)


@pytest.mark.parametrize("variational_dropout", [False, True])
def test_variational_dropout_draws_one_mask_for_all_positions_of_a_row(variational_dropout):
    """What is dropped from a branch that puts out ones is seen in the result."""
    block = DecoderBlock(
        **SIZES, pre_norm=True, dropout=0.5, variational_dropout=variational_dropout
    )
    block.build((None, None, 200))
    for weight in block.trainable_variables:
        weight.assign(np.zeros(weight.shape))
    block.feed_forward.outer.bias.assign(np.ones(200))
    inputs = np.zeros((3, T, 200), "float32")
    seed = ops.convert_to_tensor([1, 2], "int32")
    outputs = ops.convert_to_numpy(block(inputs, dropout_seed=seed, training=True))
    kept = outputs != 0.0
    assert abs(kept.mean() - 0.5) < 0.1
    agreements = [np.mean(kept[:, 0] == kept[:, at]) for at in range(1, T)]
    if variational_dropout:
        assert agreements == [1.0] * (T - 1)
    else:
        assert max(agreements) < 0.65
    for row in (1, 2):
        assert np.mean(kept[0] == kept[row]) < 0.65


@pytest.mark.parametrize(
    ("encoding", "num_positions"),
    [("shaw", None), ("learned", 0), ("transformer_xl", 3), ("sinusoidal", 3)],
)
def test_num_positions_must_suit_the_encoding(encoding, num_positions):
    with pytest.raises(ValueError, match=rf"Received: encoding='{encoding}'"):
        Positions(encoding=encoding, num_positions=num_positions)


def test_an_unknown_encoding_is_refused():
    with pytest.raises(ValueError, match=r"must be .*Received: encoding='rotary'"):
        DecoderBlock(**SIZES, positions={"encoding": "rotary"})
