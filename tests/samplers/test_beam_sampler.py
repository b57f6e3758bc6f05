"""One step of beam search."""

import numpy as np
import pytest
import tensorflow as tf

from txl_tf.samplers import BeamSampler

SCORES = tf.constant([[-1.0, -2.0]])


def step(sampler, log_probs, scores=SCORES, is_finished=((False, False),)):
    found = sampler(tf.constant(log_probs, tf.float32), scores, tf.constant(is_finished))
    return [each.numpy().tolist() for each in found]


def test_keeps_the_best_sums_whichever_beam_they_come_from():
    scores, parents, tokens = step(BeamSampler(2), [[[-3.0, -4.0, -2.5], [-1.0, -0.5, -9.0]]])
    assert (scores, parents, tokens) == ([[-2.5, -3.0]], [[1, 1]], [[1, 0]])


def test_rows_are_searched_by_themselves():
    log_probs = [[[-1.0, -5.0], [-9.0, -9.0]], [[-9.0, -9.0], [-5.0, -1.0]]]
    scores = tf.constant([[0.0, -1.0], [-1.0, -1.5]])
    _, parents, tokens = step(BeamSampler(2), log_probs, scores, [[False, False], [False, False]])
    assert (parents, tokens) == ([[0, 0], [1, 1]], [[0, 1], [1, 0]])


def test_a_beam_that_ended_keeps_its_score_once():
    scores, parents, _ = step(
        BeamSampler(2), [[[-0.1, -0.1], [-0.5, -3.0]]], is_finished=[[True, False]]
    )
    assert parents == [[0, 1]]
    np.testing.assert_allclose(scores, [[-1.0, -2.5]])


def test_all_beams_begin_as_one():
    sampler = BeamSampler(3)
    log_probs = np.log(np.tile([0.5, 0.3, 0.2], (2, 3, 1)))
    scores, parents, tokens = step(
        sampler, log_probs, sampler.initial_scores(2), np.zeros((2, 3), bool)
    )
    assert (parents, tokens) == ([[0, 0, 0]] * 2, [[0, 1, 2]] * 2)
    np.testing.assert_allclose(np.exp(scores), [[0.5, 0.3, 0.2]] * 2, rtol=1e-6)


def test_no_beams_are_refused():
    with pytest.raises(ValueError, match=r"`num_beams` must be positive\. Received: num_beams=0"):
        BeamSampler(0)
