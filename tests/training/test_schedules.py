"""Learning-rate schedules: warm-up, then constant, cosine, inverse square root or plateau."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.toy_batches import two_replicas
from txl_tf.training.optimizers import (
    PlateauScale,
    WarmupConstant,
    WarmupCosineDecay,
    WarmupInverseSquareRoot,
    WarmupPlateau,
)


def scales_after(plateau, losses):
    scales = []
    for loss in losses:
        before = float(plateau.scale.numpy())
        has_fallen = plateau.observe(loss)
        scales.append(float(plateau.scale.numpy()))
        assert has_fallen == (scales[-1] < before)
    return scales


def test_it_falls_at_the_first_evaluation_that_is_no_better():
    plateau = PlateauScale(factor=0.5)
    assert scales_after(plateau, [3.0, 2.0, 2.5, 1.9, 1.9]) == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_patience_is_how_many_in_a_row_change_nothing():
    plateau = PlateauScale(factor=0.5, patience=2)
    losses = [2.0, 2.1, 2.1, 1.9, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert scales_after(plateau, losses) == [1.0] * 6 + [0.5] * 3 + [0.25]


def test_an_improvement_too_small_to_count_is_none():
    plateau = PlateauScale(factor=0.5)
    assert scales_after(plateau, [2.0, 1.9999, 1.999]) == [1.0, 0.5, 0.5]
    # The best stays the one that counted, so that many small steps are not one plateau.
    assert float(plateau.variables["best_nats"]) == pytest.approx(1.999)


def test_the_floor_holds_and_reaching_it_again_is_no_fall():
    plateau = PlateauScale(factor=0.1, minimum=0.03)
    assert scales_after(plateau, [2.0] * 5) == pytest.approx([1.0, 0.1, 0.03, 0.03, 0.03])


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_what_is_not_finite_is_no_improvement(loss):
    plateau = PlateauScale(factor=0.5)
    assert scales_after(plateau, [loss, 2.0, loss]) == [0.5, 0.5, 0.25]


def test_resuming_at_any_evaluation_goes_on_exactly():
    losses = 2.0 + 0.3 * np.random.default_rng(5).standard_normal(20) - 0.02 * np.arange(20)
    arguments = {"factor": 0.7, "patience": 1, "minimum": 0.05}
    whole = PlateauScale(**arguments)
    states, scales = [], []
    for loss in losses:
        states.append({name: each.numpy() for name, each in whole.variables.items()})
        whole.observe(loss)
        scales.append(float(whole.scale.numpy()))
    assert len(set(scales)) > 3
    for first, state in enumerate(states):
        resumed = PlateauScale(**arguments)
        for name, array in state.items():
            resumed.variables[name].assign(array)
        assert scales_after(resumed, losses[first:]) == scales[first:]


def test_every_replica_has_the_same_multiplier():
    strategy = two_replicas()
    with strategy.scope():
        plateau = PlateauScale(factor=0.5)
    assert scales_after(plateau, [2.0, 2.0]) == [1.0, 0.5]
    for name, variable in plateau.variables.items():
        first, second = strategy.experimental_local_results(variable.value)
        assert first.numpy() == second.numpy(), name


@pytest.mark.parametrize(
    "arguments", [{"factor": 1.0}, {"factor": 0.0}, {"patience": -1}, {"minimum": 1.1}], ids=str
)
def test_values_out_of_range_are_refused(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"Received: .*{name}={value}"):
        PlateauScale(**arguments)


def test_rises_to_the_peak_and_stays():
    schedule = WarmupConstant(0.4, warmup_steps=10)
    rates = [float(schedule(step)) for step in (0, 1, 5, 10, 11, 10**9)]
    assert rates == pytest.approx([0.0, 0.04, 0.2, 0.4, 0.4, 0.4])


def rate(schedule, step):
    return float(schedule(step))


def test_rises_from_zero_to_the_peak_then_falls_to_the_floor():
    schedule = WarmupCosineDecay(0.4, warmup_steps=10, num_steps=50, final_fraction=0.1)
    by_hand = {
        0: 0.0,
        1: 0.04,
        5: 0.2,
        10: 0.4,  # the peak
        20: 0.04 + 0.36 * 0.8535533905932737,  # 0.5 * (1 + cos(pi / 4))
        30: 0.22,  # half way between peak and floor
        50: 0.04,
        1000: 0.04,  # the floor holds after the end
    }
    for step, expected in by_hand.items():
        assert rate(schedule, step) == pytest.approx(expected, rel=1e-6), step


def test_without_warm_up_it_begins_at_the_peak():
    schedule = WarmupCosineDecay(0.4, warmup_steps=0, num_steps=4)
    rates = [rate(schedule, step) for step in range(6)]
    by_hand = [0.4, 0.4 * 0.8535533905932737, 0.2, 0.4 * 0.14644660940672627, 0.0, 0.0]
    assert rates == pytest.approx(by_hand, abs=1e-7)


@pytest.mark.parametrize("warmup_steps", [-1, 5, 6])
def test_a_warm_up_that_is_not_shorter_than_the_run_is_refused(warmup_steps):
    with pytest.raises(ValueError, match=f"Received: warmup_steps={warmup_steps}, num_steps=5"):
        WarmupCosineDecay(0.4, warmup_steps=warmup_steps, num_steps=5)


def test_its_configuration_makes_the_same_schedule():
    schedule = WarmupCosineDecay(0.3, warmup_steps=3, num_steps=17, final_fraction=0.2)
    config = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(config)
    assert isinstance(again, WarmupCosineDecay)
    assert again.get_config() == schedule.get_config()
    assert [rate(again, step) for step in range(20)] == [rate(schedule, step) for step in range(20)]


def test_rises_to_the_peak_then_halves_whenever_the_step_is_four_times_as_large():
    schedule = WarmupInverseSquareRoot(0.4, warmup_steps=100)
    by_hand = {0: 0.0, 50: 0.2, 99: 0.396, 100: 0.4, 400: 0.2, 900: 0.4 / 3, 160_000: 0.01}
    for step, expected in by_hand.items():
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-6), step


def test_it_is_the_official_schedule_with_another_unit():
    # There the learning rate is that of step 1 without a warm-up.
    warmup_steps, official_rate = 16, 0.8
    schedule = WarmupInverseSquareRoot(official_rate / warmup_steps**0.5, warmup_steps)
    for step in (1, 7, 16, 17, 1000):
        official = official_rate * min(step**-0.5, step * warmup_steps**-1.5)
        assert float(schedule(step)) == pytest.approx(official, rel=1e-6), step


def test_without_warm_up_it_falls_from_the_first_step_on():
    schedule = WarmupInverseSquareRoot(0.4, warmup_steps=0)
    rates = [float(schedule(step)) for step in (0, 1, 4, 16)]
    assert rates == pytest.approx([0.4, 0.4, 0.2, 0.1])


def test_it_is_the_warm_up_times_the_multiplier():
    plateau = PlateauScale(factor=0.5)
    schedule = WarmupPlateau(0.4, warmup_steps=10, plateau_scale=plateau)
    assert [float(schedule(step)) for step in (0, 5, 10, 99)] == pytest.approx([0, 0.2, 0.4, 0.4])
    plateau.observe(2.0)
    plateau.observe(2.0)
    assert [float(schedule(step)) for step in (0, 5, 10, 99)] == pytest.approx([0, 0.1, 0.2, 0.2])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_traced_function_sees_a_new_multiplier(jit_compile):
    plateau = PlateauScale(factor=0.5)
    schedule = WarmupPlateau(0.4, warmup_steps=0, plateau_scale=plateau)
    num_traces = 0

    @tf.function(jit_compile=jit_compile)
    def rate(step):
        nonlocal num_traces
        num_traces += 1
        return schedule(step)

    rates = [float(rate(tf.constant(3)))]
    for _ in range(2):
        plateau.observe(2.0)
        rates.append(float(rate(tf.constant(3))))
    assert rates == pytest.approx([0.4, 0.4, 0.2])
    assert num_traces == 1


def test_warmup_plateau_its_configuration_makes_the_same_schedule():
    plateau = PlateauScale(factor=0.3, patience=1, minimum=0.1)
    schedule = WarmupPlateau(0.3, warmup_steps=3, plateau_scale=plateau)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert isinstance(again, WarmupPlateau)
    assert again.plateau_scale.get_config() == plateau.get_config()
    assert [float(again(step)) for step in range(5)] == [float(schedule(step)) for step in range(5)]


@pytest.mark.parametrize(
    "made",
    [
        WarmupConstant,
        WarmupInverseSquareRoot,
        functools.partial(WarmupPlateau, plateau_scale=PlateauScale()),
    ],
)
def test_a_negative_warm_up_is_refused(made):
    with pytest.raises(ValueError, match="Received: warmup_steps=-1"):
        made(0.4, warmup_steps=-1)


@pytest.mark.parametrize("made", [WarmupConstant, WarmupInverseSquareRoot])
def test_the_configuration_makes_the_same_schedule(made):
    schedule = made(0.3, warmup_steps=3)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert isinstance(again, made)
    assert [float(again(step)) for step in range(9)] == [float(schedule(step)) for step in range(9)]
