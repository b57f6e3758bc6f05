"""Learning-rate schedules: the rate of every step."""

import keras
import numpy as np
import pytest

from txl_tf.config.experiment import OptimizerConfig
from txl_tf.training.optimizers import WarmupSchedule


def schedule_of(name, peak, warmup_steps, num_steps=100, **settings):
    config = OptimizerConfig(
        schedule=name, learning_rate=peak, warmup_steps=warmup_steps, **settings
    )
    return WarmupSchedule(config, num_steps)


# Rates by step, by hand.
SCHEDULES = [
    (schedule_of("constant", 0.4, 10), {1: 0.04, 5: 0.2, 10: 0.4, 11: 0.4, 10**9: 0.4}),
    (
        schedule_of("cosine", 0.4, 10, 50, final_learning_rate_fraction=0.1),
        # 0.5 * (1 + cos(pi / 4)), then half way between peak and floor, which holds.
        {5: 0.2, 10: 0.4, 20: 0.04 + 0.36 * 0.85355339, 30: 0.22, 50: 0.04, 1000: 0.04},
    ),
    (
        schedule_of("cosine", 0.4, 0, 4, final_learning_rate_fraction=0.0),
        # Thirds of the way from step 1 to step 4.
        {1: 0.4, 2: 0.3, 3: 0.1, 4: 0.0, 5: 0.0},
    ),
    (schedule_of("cosine", 0.4, 0, 1), {1: 0.4}),
    (
        schedule_of("inverse_square_root", 0.4, 100),
        {50: 0.2, 99: 0.396, 100: 0.4, 400: 0.2, 900: 0.4 / 3, 160_000: 0.01},
    ),
    (schedule_of("inverse_square_root", 0.4, 0), {1: 0.4, 4: 0.2, 16: 0.1}),
    # The official code is given the rate of step 1 without a warm-up, here 0.8.
    (
        schedule_of("inverse_square_root", 0.8 / 4, 16),
        {step: 0.8 * min(step**-0.5, step * 16**-1.5) for step in (1, 7, 16, 17, 1000)},
    ),
    (
        # Stable up to step 75; after 9 of 25 steps of the fall the root is 0.6.
        schedule_of("wsd", 0.4, 10, final_learning_rate_fraction=0.1, decay_fraction=0.25),
        {5: 0.2, 10: 0.4, 75: 0.4, 84: 0.04 + 0.36 * (1 - 0.6), 100: 0.04, 999: 0.04},
    ),
]


@pytest.mark.parametrize(("schedule", "rates"), SCHEDULES)
def test_rates_are_those_by_hand_and_the_configuration_makes_the_same_schedule(schedule, rates):
    found = {step: float(schedule.rate(step)) for step in rates}
    assert found == pytest.approx(rates, rel=1e-6, abs=1e-7)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert type(again) is type(schedule) and again.get_config() == schedule.get_config()
    assert {step: float(again.rate(step)) for step in rates} == found


def test_the_first_update_has_the_rate_of_step_1_and_moves_the_weights():
    schedule = schedule_of("cosine", 0.4, 10)
    assert [float(schedule(done)) for done in (0, 9)] == pytest.approx([0.04, 0.4])
    variable = keras.Variable([1.0])
    keras.optimizers.SGD(schedule).apply([np.ones(1, "float32")], [variable])
    assert float(variable[0]) == pytest.approx(1.0 - 0.04)


def test_a_warm_up_as_long_as_the_run_is_refused():
    with pytest.raises(ValueError, match="Received: warmup_steps=5, num_steps=5"):
        schedule_of("cosine", 0.4, 5, num_steps=5)
