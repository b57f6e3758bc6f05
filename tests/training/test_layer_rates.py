"""Learning rates by layer: a step of a lower layer is smaller by the decay."""

import numpy as np
import pytest

from tests.training.test_task_objective import experiment_of, trainer_of


def first_step(decay):
    optimizer = {"name": "sgd", "schedule": "constant", "clip_norm": 1e6, "epsilon": 1e-8}
    optimizer["layer_rate_decay"] = decay
    training = {"num_steps": 1, "steps_per_loop": 1}
    trainer = trainer_of(experiment_of("classification", optimizer=optimizer, training=training))
    before = trainer.arrays()
    list(trainer.run())
    return {name: array - before[name] for name, array in trainer.arrays().items()}


@pytest.mark.slow
def test_the_step_of_each_layer_is_multiplied_by_the_decay_for_each_layer_above():
    plain, decayed = first_step(None), first_step(0.5)
    factors = {"embedding": 0.25, "block_0": 0.5, "head": 1.0}
    found = dict.fromkeys(factors, 0)
    for name, change in plain.items():
        part = next((part for part in factors if part in name), None)
        if part is None or not np.abs(change).max() > 1e-7 or name.startswith("optimizer"):
            continue
        found[part] += 1
        np.testing.assert_allclose(decayed[name], factors[part] * change, rtol=2e-2, atol=1e-7)
    assert min(found.values()) > 0
