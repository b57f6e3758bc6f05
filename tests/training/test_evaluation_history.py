"""Last and best evaluation of a run."""

import numpy as np

from txl_tf.training.evaluation_history import EvaluationHistory


def test_a_history_knows_the_best_and_the_last_and_continues_from_its_state():
    unbroken, interrupted, resumed = (EvaluationHistory() for _ in range(3))
    losses = [3.0, 2.5, 2.7, float("nan"), 2.4]
    decisions = [unbroken.observe(step, loss) for step, loss in enumerate(losses)]
    assert decisions == [True, True, False, False, True]
    for step in range(3):
        interrupted.observe(step, losses[step])
    assert (interrupted.last_step, interrupted.best_step) == (2, 1)
    assert interrupted.best_nats_per_token == 2.5
    assert all(np.isfinite(array).all() for array in interrupted.state().values())
    resumed.load_state(interrupted.state())
    assert [resumed.observe(step, losses[step]) for step in (3, 4)] == decisions[3:]
    assert resumed.state() == unbroken.state()
