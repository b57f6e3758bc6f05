"""A task that only a memory solves: a segment asks for what the one before showed.

Symbols are drawn anew in every step, so without a memory nothing is better
than chance, `ln(NUM_SYMBOLS)`, whatever is learned.
"""

import math

import keras
import numpy as np
import pytest
from keras import ops

from tests.layer_checks import tf
from tests.small_models import small_config
from txl_tf.models.transformer_xl import TransformerXL

NUM_SYMBOLS, ASK, T, ROWS, NUM_STEPS, NUM_LAST = 8, 8, 6, 32, 300, 20
CHANCE = math.log(NUM_SYMBOLS)


@pytest.mark.slow
@pytest.mark.parametrize("recurrence", [True, False])
def test_transformer_xl_answers_if_it_remembers(recurrence):
    """Shows symbols, asks for them, and learns from the answers alone; no step saw them before."""
    model = TransformerXL(
        small_config(
            T,
            T,
            vocabulary_size=NUM_SYMBOLS + 1,
            width=32,
            intermediate_dim=32,
            dropout=0.0,
            initializer_stddev=0.1,
            recurrence=recurrence,
        )
    )
    optimizer = keras.optimizers.Adam(3e-3)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def step(symbols):
        _, memory = model(symbols, model.initial_memory(ROWS))
        with tf.GradientTape() as tape:
            nll, _ = model.score(ops.full_like(symbols, ASK), symbols, memory)
            loss = tf.reduce_mean(nll)
        gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
        optimizer.apply(list(map(tf.convert_to_tensor, gradients)), model.trainable_variables)
        return loss

    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, NUM_SYMBOLS, (ROWS, T)) for _ in range(NUM_STEPS)]
    losses = [step(tf.constant(symbols, tf.int32)) for symbols in drawn]
    loss = float(np.mean(losses[-NUM_LAST:]))
    if recurrence:
        assert loss < 0.1
    else:
        assert abs(loss - CHANCE) < 0.05 * CHANCE
