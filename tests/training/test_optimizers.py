"""Optimizers by name, each against its paper, and the learning rate of every step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.training import optimizer_oracles as oracles
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.training.optimizers import Lamb, WarmupSchedule, create_optimizer

NUM_STEPS = 8
SHAPES = {
    "embedding/table": (5, 4),
    "inner/kernel": (4, 6),
    "outer/kernel": (6, 4),
    "inner/content_bias": (2, 3),
    "softmax/bias": (5,),
}
ADAM = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}
# Learning rate, other settings, and the oracle in NumPy.
CASES = {
    "adamw": (3e-2, {**ADAM, "weight_decay": 0.3}, oracles.adam(0.8, 0.95, 1e-3)),
    "lamb": (
        1e-1,
        {**ADAM, "weight_decay": 0.3, "max_weight_norm": 1.5},
        oracles.lamb(0.8, 0.95, 1e-3, 1.5),
    ),
    "muon": (
        3e-2,
        {**ADAM, "weight_decay": 0.3, "momentum": 0.9},
        oracles.muon(0.9, 0.8, 0.95, 1e-3),
    ),
}


def config_of(name, **changes):
    rate, settings, _ = CASES[name]
    return OptimizerConfig(
        **{"name": name, "learning_rate": rate, "warmup_steps": 2, **settings, **changes}
    )


def create_variables(seed=3):
    random = np.random.default_rng(seed)
    variables = []
    for path, shape in SHAPES.items():
        scope, name = path.split("/")
        values = random.normal(scale=0.7, size=shape)
        with keras.name_scope(scope):
            variables.append(keras.Variable(values, dtype="float32", name=name))
    assert [variable.path for variable in variables] == list(SHAPES)
    return variables


def arrays_of(variables):
    named = {variable.path: variable.numpy() for variable in variables}
    assert len(named) == len(variables), "paths are not unique"
    return named


def random_gradients(num_steps):
    random = np.random.default_rng(9)
    return [
        {path: random.normal(size=shape) * 10.0**-step for path, shape in SHAPES.items()}
        for step in range(num_steps)
    ]


@pytest.mark.parametrize("name", CASES)
def test_updates_match_the_paper(name):
    config, step_of = config_of(name), CASES[name][2]
    variables = create_variables()
    optimizer = create_optimizer(WarmupSchedule(config, NUM_STEPS), variables)
    initial = arrays_of(variables)
    gradients_of_steps, rates = random_gradients(NUM_STEPS), []
    for gradients in gradients_of_steps:
        rates.append(float(optimizer.learning_rate))
        optimizer.apply([tf.constant(each, tf.float32) for each in gradients.values()], variables)
    assert len(set(rates)) == NUM_STEPS
    expected = oracles.run_oracle(step_of, initial, gradients_of_steps, rates, config.weight_decay)
    trained = arrays_of(variables)
    # Muon's iteration is not contracting, so rounding errors grow in it.
    tolerance = 1e-4 if name == "muon" else 3e-6
    for path, array in expected.items():
        np.testing.assert_allclose(trained[path], array, rtol=0, atol=tolerance, err_msg=path)
        assert np.abs(array - initial[path]).max() > 1e-2, path


def test_the_configuration_makes_the_same_optimizer():
    optimizer = Lamb(learning_rate=0.05, max_weight_norm=3.0)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(again) is type(optimizer)
    assert again.get_config() == optimizer.get_config()


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
def test_rates_match_the_formula_also_after_serialization(schedule, rates):
    computed = {step: float(schedule.rate(step)) for step in rates}
    assert computed == pytest.approx(rates, rel=1e-6, abs=1e-7)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert type(again) is type(schedule) and again.get_config() == schedule.get_config()
    assert {step: float(again.rate(step)) for step in rates} == computed


def test_a_warm_up_as_long_as_the_run_is_refused():
    with pytest.raises(ValueError, match="Received: warmup_steps=5, num_steps=5"):
        schedule_of("cosine", 0.4, 5, num_steps=5)
