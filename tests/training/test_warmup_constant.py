import keras
import pytest

from txl_tf.training.warmup_constant import WarmupConstant


def test_rises_to_the_peak_and_stays():
    schedule = WarmupConstant(0.4, warmup_steps=10)
    rates = [float(schedule(step)) for step in (0, 1, 5, 10, 11, 10**9)]
    assert rates == pytest.approx([0.0, 0.04, 0.2, 0.4, 0.4, 0.4])


def test_without_warm_up_it_is_the_peak_from_the_start():
    schedule = WarmupConstant(0.4, warmup_steps=0)
    assert [float(schedule(step)) for step in (0, 1, 99)] == pytest.approx([0.4] * 3)


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="Received: warmup_steps=-1"):
        WarmupConstant(0.4, warmup_steps=-1)


def test_its_configuration_makes_the_same_schedule():
    schedule = WarmupConstant(0.3, warmup_steps=3)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert isinstance(again, WarmupConstant)
    assert [float(again(step)) for step in range(5)] == [float(schedule(step)) for step in range(5)]
