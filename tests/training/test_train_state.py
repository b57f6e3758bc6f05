"""What a run keeps in mind of its evaluations, and takes up again."""

import numpy as np
import pytest

from txl_tf.training.schedules import PlateauScale
from txl_tf.training.train_state import EvaluationHistory


def test_the_best_and_the_last_are_told_apart():
    history = EvaluationHistory()
    found = [history.observe(step, nats) for step, nats in [(10, 3.0), (20, 2.5), (30, 2.7)]]
    assert found == [True, True, False]
    assert (history.last_step, history.best_step, history.best_nats_per_token) == (30, 20, 2.5)


def test_what_is_not_a_number_is_never_the_best():
    history = EvaluationHistory()
    assert not history.observe(10, float("nan"))
    assert history.observe(20, 9.0)


@pytest.mark.parametrize("num_observed", [0, 1, 3])
def test_a_history_goes_on_from_its_state(num_observed):
    losses = [3.0, 2.5, 2.7, 2.6, 2.4]
    unbroken, interrupted = EvaluationHistory(), EvaluationHistory()
    for step in range(num_observed):
        interrupted.observe(step, losses[step])
    state = interrupted.state()
    assert all(np.isfinite(array).all() for array in state.values())
    resumed = EvaluationHistory()
    resumed.load_state(state)
    for step in range(5):
        was_best = unbroken.observe(step, losses[step])
        if step >= num_observed:
            assert resumed.observe(step, losses[step]) == was_best
    assert resumed.state() == unbroken.state()


def test_a_state_with_other_names_is_refused():
    state = EvaluationHistory().state()
    del state["evaluation/best_step"]
    with pytest.raises(ValueError, match=r"Received: .*best_step"):
        EvaluationHistory().load_state(state)


def test_the_learning_rate_is_told_of_every_evaluation():
    scale = PlateauScale(factor=0.5, patience=0)
    history = EvaluationHistory(scale)
    for step, nats in enumerate([3.0, 3.0, 2.0, 2.5]):
        history.observe(step, nats)
    assert float(scale.scale.numpy()) == 0.25
