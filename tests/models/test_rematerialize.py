"""Rematerialization computes blocks again in the backward pass and changes no number."""

import re

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.layer_checks import drawn_seeds, randomize_weights
from tests.models.variants import T, config_of, filled_memory, score, token_ids
from tests.reference import max_difference
from txl_tf import functional
from txl_tf.models.transformer_xl import TransformerXL

DROPOUTS = {"dropout": 0.3, "attention_dropout": 0.2}


def pair_of(position_encoding="transformer_xl", dtype="float32", **changes):
    """The same model without and with rematerialisation."""
    config = config_of(position_encoding, **{**DROPOUTS, **changes})
    plain = TransformerXL(config, dtype=dtype)
    randomize_weights(plain)
    again = TransformerXL(config, rematerialize=True, dtype=dtype)
    for weight, other in zip(again.weights, plain.weights, strict=True):
        weight.assign(other)
    return plain, again


def rows_seeds():
    return functional.row_seeds(ops.convert_to_tensor([3, 4], "int32"), np.array([6, 2], "int32"))


def gradients_of(model, memory, seeds):
    with tf.GradientTape() as tape:
        nll, memory = score(model, token_ids(T + 1), memory, dropout_seed=seeds, training=True)
        loss = tf.reduce_mean(nll)
    variables = [variable.value for variable in model.trainable_variables]
    gradients = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return loss, memory, [tf.convert_to_tensor(gradient) for gradient in gradients]


def assert_equal(results, expected, tolerance):
    (loss, memory, gradients), (true_loss, true_memory, true_gradients) = results, expected
    assert abs(float(loss) - float(true_loss)) <= tolerance * float(true_loss)
    for state, true_state in zip(memory.states, true_memory.states, strict=True):
        assert max_difference(state, true_state) <= tolerance * np.abs(true_state).max(initial=0.0)
    assert np.array_equal(memory.valid_length, true_memory.valid_length)
    for gradient, true_gradient in zip(gradients, true_gradients, strict=True):
        largest = float(tf.reduce_max(tf.abs(true_gradient)))
        assert max_difference(gradient, true_gradient) <= tolerance * largest


@pytest.mark.parametrize(
    ("position_encoding", "changes"),
    [
        ("transformer_xl", {"variational_dropout": True}),
        ("transformer_xl", {"share_attention_biases": True, "pre_norm": True}),
        ("shaw", {}),
        ("sinusoidal", {}),
        ("learned", {"pre_norm": True, "residual_gate": "gru"}),
        ("learned", {"recurrence": False}),
    ],
)
def test_gradients_outputs_and_memory_are_equal(position_encoding, changes):
    plain, again = pair_of(position_encoding, **changes)
    memory, seeds = filled_memory(plain), rows_seeds()
    results = gradients_of(again, memory, seeds)
    assert_equal(results, gradients_of(plain, memory, seeds), tolerance=1e-6)


def num_products(model, memory):
    """Matrix products of a compiled gradient, as left by XLA's search for common terms."""

    def run(seeds):
        return gradients_of(model, memory, seeds)

    compiled = tf.function(run, jit_compile=True)
    text = compiled.experimental_get_compiler_ir(rows_seeds())(stage="optimized_hlo")
    return len(re.findall(r" (?:dot|convolution)\(|custom-call\(.*dot", text))


@pytest.mark.slow
def test_xla_does_compute_blocks_again():
    plain, again = pair_of(num_layers=1)
    memory = filled_memory(plain)
    once, twice = num_products(plain, memory), num_products(again, memory)
    # Queries, keys, values, positions, content and position scores, attended values and the
    # inner layer; what follows the last normalisation's input is needed by no gradient.
    assert twice - once >= 8 * len(again.blocks)


def test_without_a_seed_both_computations_draw_the_same_masks(monkeypatch):
    _, again = pair_of(num_layers=1)
    memory, weight = filled_memory(again), again.blocks[0].feed_forward.outer.bias
    seeds = drawn_seeds(monkeypatch)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(again(token_ids(T), memory, training=True)[0] ** 3)
    first = list(seeds)
    tape.gradient(loss, weight.value)
    repeated = seeds[len(first) :]
    assert len(repeated) == 4 and set(repeated) < set(first)
