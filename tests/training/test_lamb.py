import keras
import numpy as np
import pytest
import tensorflow as tf

from txl_tf.training.lamb import Lamb


def change_of(optimizer, values):
    variable = keras.Variable(values, dtype="float32")
    optimizer.apply([tf.constant([0.3, -0.4])], [variable])
    return variable.numpy() - np.float32(values)


@pytest.mark.parametrize(
    ("values", "share"), [([30.0, 40.0], 0.2), ([6.0, 8.0], 1.0), ([0.3, 0.4], 1.0)]
)
def test_a_norm_above_the_limit_counts_as_the_limit(values, share):
    limited = change_of(Lamb(learning_rate=0.1, max_weight_norm=10.0), values)
    whole = change_of(keras.optimizers.Lamb(learning_rate=0.1), values)
    np.testing.assert_allclose(limited, share * whole, rtol=1e-4)
    # The step is as long as the norm says, whatever the gradient is.
    assert np.linalg.norm(whole) == pytest.approx(0.1 * np.linalg.norm(values), rel=1e-4)


def test_variables_of_zeros_take_the_step_of_adam():
    change = change_of(Lamb(learning_rate=0.1, max_weight_norm=10.0), [0.0, 0.0])
    np.testing.assert_allclose(change, [-0.1, 0.1], rtol=1e-5)


def test_its_configuration_makes_the_same_optimizer():
    optimizer = Lamb(learning_rate=0.05, max_weight_norm=3.0, name="optimizer")
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, Lamb)
    assert again.get_config() == optimizer.get_config()
