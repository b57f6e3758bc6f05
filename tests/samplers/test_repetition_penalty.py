"""What the repetition penalty does to probabilities."""

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.samplers import RepetitionPenalty

LOGITS = tf.constant([[3.0, 1.0, -2.0, 0.5], [-1.0, -1.0, 4.0, 9.0]])
IS_USED = tf.constant([[True, False, True, False], [False, False, False, True]])


def test_used_tokens_are_raised_to_the_power_of_the_penalty():
    probabilities = tf.nn.softmax(LOGITS).numpy()
    powers = np.where(IS_USED, probabilities**1.5, probabilities)
    found = tf.nn.softmax(RepetitionPenalty(1.5)(LOGITS, IS_USED))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("constant", [-50.0, 0.0, 50.0])
def test_used_tokens_become_less_probable_whatever_the_sign_of_the_logits(constant):
    found = tf.nn.softmax(RepetitionPenalty(1.3)(LOGITS + constant, IS_USED)).numpy()
    before = tf.nn.softmax(LOGITS).numpy()
    assert (found[IS_USED] < before[IS_USED]).all()
    np.testing.assert_allclose(
        found, tf.nn.softmax(RepetitionPenalty(1.3)(LOGITS, IS_USED)), rtol=1e-4
    )


def test_a_penalty_of_one_changes_nothing():
    found = tf.nn.softmax(RepetitionPenalty(1.0)(LOGITS, IS_USED))
    np.testing.assert_allclose(found, tf.nn.softmax(LOGITS), rtol=1e-5)


@pytest.mark.parametrize("penalty", [0.9, 0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_penalty_is_refused(penalty):
    with pytest.raises(ValueError, match="`penalty` must be at least 1 and finite"):
        RepetitionPenalty(penalty)
