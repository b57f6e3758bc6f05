"""Gradients of all variants: XLA against eager, and both against finite differences.

In float64, where finite differences keep six digits and more.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.models.variants import (
    ADAPTIVE,
    COMBINATIONS,
    T,
    assert_gradients_match_finite_differences,
    filled_memory,
    made,
    score,
    token_ids,
)
from tests.reference import max_difference

OTHERS = [
    ("learned", {**ADAPTIVE, "tie_weights": False, "share_tail_projections": True}),
    ("transformer_xl", {**ADAPTIVE, "share_attention_biases": True}),
    ("learned", {"pre_norm": True, "residual_gate": "gru"}),
]
pytestmark = pytest.mark.slow


class Step:
    """Loss, gradients and next memory of one segment with some memory before it."""

    def __init__(self, model, **kwargs):
        self.model = model
        self.weights = model.trainable_variables
        self.memory = filled_memory(model)
        vocabulary_size = model.config.vocabulary_size
        self.tokens = tf.constant(token_ids(T + 1, vocabulary_size=vocabulary_size))
        self.kwargs = kwargs
        self.compiled = tf.function(self.eager, jit_compile=True)

    def eager(self):
        with tf.GradientTape() as tape:
            nll, memory = score(self.model, self.tokens, self.memory, **self.kwargs)
            # Unequal weights, so that no sum over positions can hide a mistake.
            weights = tf.reshape(tf.range(1, tf.size(nll) + 1), nll.shape)
            loss = tf.reduce_mean(nll * tf.cast(weights, nll.dtype))
        gradients = tape.gradient(loss, [weight.value for weight in self.weights])
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], memory


def assert_all_agree(model):
    step = Step(model)
    loss, gradients, memory = step.eager()
    assert loss.dtype == tf.float64
    compiled_loss, compiled_gradients, compiled_memory = step.compiled()
    assert abs(float(compiled_loss) - float(loss)) <= 1e-9
    for compiled, eager in zip(compiled_gradients, gradients, strict=True):
        # Float32 sinusoids of the two compilers may differ in their last digit.
        assert max_difference(compiled, eager) <= 1e-5
    for compiled, eager in zip(compiled_memory.states, memory.states, strict=True):
        assert max_difference(compiled, eager) <= 1e-5
    assert np.array_equal(compiled_memory.valid_length, memory.valid_length)
    assert_gradients_match_finite_differences(
        step.weights, compiled_gradients, lambda: step.compiled()[0]
    )


@pytest.mark.parametrize(
    ("position_encoding", "recurrence", "pre_norm"),
    # Without recurrence, what has no memory is one path.
    [each for each in COMBINATIONS if each[1] or each[0] == "transformer_xl" or each[2]],
)
def test_gradients_of_every_combination(position_encoding, recurrence, pre_norm):
    options = {"recurrence": recurrence, "pre_norm": pre_norm, "num_layers": 1 + pre_norm}
    assert_all_agree(made(position_encoding, dtype="float64", **options))


@pytest.mark.parametrize(("position_encoding", "changes"), OTHERS)
def test_gradients_of_other_options(position_encoding, changes):
    assert_all_agree(made(position_encoding, dtype="float64", num_layers=1, **changes))


@pytest.mark.parametrize("position_encoding", ["transformer_xl", "sinusoidal"])
def test_gradients_under_dropout(position_encoding):
    """Masks of one seed are constants of the loss, so that differences are defined."""
    rates = {"dropout": 0.2, "attention_dropout": 0.2}
    model = made(
        position_encoding, dtype="float64", num_layers=1, variational_dropout=True, **rates
    )
    step = Step(model, dropout_seed=tf.constant([4, 5]), training=True)
    _, gradients, _ = step.compiled()
    assert_gradients_match_finite_differences(step.weights, gradients, lambda: step.compiled()[0])
