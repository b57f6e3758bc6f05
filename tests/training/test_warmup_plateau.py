import keras
import pytest
import tensorflow as tf

from txl_tf.training.plateau_scale import PlateauScale
from txl_tf.training.warmup_plateau import WarmupPlateau


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


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="Received: warmup_steps=-1"):
        WarmupPlateau(0.4, warmup_steps=-1, plateau_scale=PlateauScale())


def test_its_configuration_makes_the_same_schedule():
    plateau = PlateauScale(factor=0.3, patience=1, minimum=0.1)
    schedule = WarmupPlateau(0.3, warmup_steps=3, plateau_scale=plateau)
    again = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    assert isinstance(again, WarmupPlateau)
    assert again.plateau_scale.get_config() == plateau.get_config()
    assert [float(again(step)) for step in range(5)] == [float(schedule(step)) for step in range(5)]
