import keras
import pytest

from txl_tf.training.warmup_cosine_decay import WarmupCosineDecay


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


def test_a_floor_of_one_keeps_the_peak():
    schedule = WarmupCosineDecay(0.4, warmup_steps=2, num_steps=20, final_fraction=1.0)
    assert [rate(schedule, step) for step in (2, 9, 20, 99)] == pytest.approx([0.4] * 4)


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
