import keras
import pytest

from txl_tf.training.warmup_inverse_square_root import WarmupInverseSquareRoot


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


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="Received: warmup_steps=-1"):
        WarmupInverseSquareRoot(0.4, warmup_steps=-1)


def test_its_configuration_makes_the_same_schedule():
    schedule = WarmupInverseSquareRoot(0.3, warmup_steps=3)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert isinstance(again, WarmupInverseSquareRoot)
    assert [float(again(step)) for step in range(9)] == [float(schedule(step)) for step in range(9)]
