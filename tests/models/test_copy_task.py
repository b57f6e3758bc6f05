"""A task that only a memory solves: a segment asks for what the one before showed.

Symbols are drawn anew in every step, so without a memory nothing is better
than chance, `ln(NUM_SYMBOLS)`, whatever is learned.
"""

import math

import keras
import numpy as np
import pytest
from keras import ops

from tests.layer_checks import needs_tensorflow, tf
from tests.small_models import small_config
from txl_tf.models.transformer_xl import TransformerXL

NUM_SYMBOLS, ASK, T, ROWS, NUM_STEPS, NUM_LAST = 8, 8, 6, 32, 300, 20
CHANCE = math.log(NUM_SYMBOLS)
pytestmark = needs_tensorflow


def made(position_encoding, recurrence, pre_norm):
    table = {"num_positions": 2 * T} if position_encoding in ("shaw", "learned") else {}
    config = small_config(
        T,
        T,
        vocabulary_size=NUM_SYMBOLS + 1,
        width=32,
        intermediate_dim=32,
        dropout=0.0,
        initializer_stddev=0.1,
        position_encoding=position_encoding,
        recurrence=recurrence,
        pre_norm=pre_norm,
        **table,
    )
    return TransformerXL(config)


def compiled_step(model, optimizer):
    """Shows symbols, asks for them, and learns from the answers alone."""
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def step(symbols):
        _, memory = model(symbols, model.initial_memory(ROWS))
        with tf.GradientTape() as tape:
            nll, _ = model.score(ops.full_like(symbols, ASK), symbols, memory)
            loss = tf.reduce_mean(nll)
        weights = [weight.value for weight in model.trainable_variables]
        gradients = tape.gradient(loss, weights)
        optimizer.apply(
            [tf.convert_to_tensor(gradient) for gradient in gradients], model.trainable_variables
        )
        return loss

    return step


def trained_loss(position_encoding, recurrence, pre_norm=False):
    """Mean loss of the last steps, on symbols that no step saw before."""
    model = made(position_encoding, recurrence, pre_norm)
    step = compiled_step(model, keras.optimizers.Adam(3e-3))
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(NUM_STEPS):
        losses.append(step(tf.constant(rng.integers(0, NUM_SYMBOLS, (ROWS, T)), tf.int32)))
    return float(np.mean(losses[-NUM_LAST:]))


def assert_memory_decides(position_encoding, recurrence, pre_norm=False):
    loss = trained_loss(position_encoding, recurrence, pre_norm)
    if recurrence:
        assert loss < 0.1
    else:
        assert abs(loss - CHANCE) < 0.05 * CHANCE


@pytest.mark.slow
@pytest.mark.parametrize("recurrence", [True, False])
def test_transformer_xl_answers_if_it_remembers(recurrence):
    assert_memory_decides("transformer_xl", recurrence)
