"""Training in mixed bfloat16 reaches the loss of float32 on real bytes."""

import pathlib

import keras
import numpy as np
import pytest

from tests.layer_checks import needs_tensorflow, tf
from tests.small_models import small_config
from txl_tf.models.transformer_xl import TransformerXL

CORPUS = (
    pathlib.Path(__file__).resolve().parents[3] / "shared/data/enwik8-prefix/enwik8.first4150000"
)
ROWS, T, NUM_STEPS, NUM_LAST = 16, 32, 300, 50
pytestmark = [
    needs_tensorflow,
    pytest.mark.slow,
    pytest.mark.skipif(not CORPUS.exists(), reason="the corpus is not here"),
]


def segments():
    """Rows of bytes in their order, one more than a segment each."""
    text = np.frombuffer(CORPUS.read_bytes()[: ROWS * (NUM_STEPS * T + 1)], np.uint8)
    rows = text.reshape(ROWS, -1).astype("int32")
    return [rows[:, step * T : (step + 1) * T + 1] for step in range(NUM_STEPS)]


def trained_losses(policy):
    """Nats per byte of every step; seed and data are the same for all policies."""
    keras.utils.set_random_seed(5)
    config = small_config(T, T, vocabulary_size=256, width=64, dropout=0.0)
    model = TransformerXL(config, dtype=policy)
    optimizer = keras.optimizers.Adam(2e-3)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def step(tokens, memory):
        with tf.GradientTape() as tape:
            nll, memory = model.score(tokens[:, :-1], tokens[:, 1:], memory)
            loss = tf.reduce_mean(nll)
        weights = [weight.value for weight in model.trainable_variables]
        gradients = [tf.convert_to_tensor(each) for each in tape.gradient(loss, weights)]
        optimizer.apply(gradients, model.trainable_variables)
        return loss, memory

    memory, losses = model.initial_memory(ROWS), []
    for tokens in segments():
        loss, memory = step(tf.constant(tokens), memory)
        losses.append(float(loss))
    return losses


def test_mixed_bfloat16_reaches_the_loss_of_float32():
    full, half = (trained_losses(policy) for policy in ("float32", "mixed_bfloat16"))
    assert half != full  # or nothing was computed in half precision
    full_loss, half_loss = (float(np.mean(losses[-NUM_LAST:])) for losses in (full, half))
    print(f"float32 {full_loss:.4f}, mixed_bfloat16 {half_loss:.4f} nats per byte")
    assert full_loss < 0.8 * full[0]  # both learned something
    assert abs(half_loss / full_loss - 1.0) < 0.01
