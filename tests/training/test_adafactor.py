import keras
import numpy as np
import pytest
import tensorflow as tf

from txl_tf.training.optimizers import Adafactor


def variables_of(*shapes):
    with keras.name_scope("block"):
        return [keras.Variable(tf.ones(shape), name=f"weight_{len(shape)}") for shape in shapes]


def test_its_state_is_a_row_and_a_column_of_each_matrix():
    variables = variables_of((50, 40), (3, 50, 40), (40,))
    optimizer = Adafactor(0.01, name="optimizer")
    optimizer.build(variables)
    sizes = {each.path: tuple(each.shape) for each in optimizer.variables if len(each.shape)}
    assert sizes == {
        "optimizer/block_weight_2_rows": (50,),
        "optimizer/block_weight_2_columns": (40,),
        "optimizer/block_weight_3_rows": (3, 50),
        "optimizer/block_weight_3_columns": (3, 40),
        "optimizer/block_weight_1_squares": (40,),
    }


@pytest.mark.parametrize("jit_compile", [False, True])
def test_rows_and_columns_without_gradients_stay_as_they_are(jit_compile):
    # As those of tokens that are not in the batch, and of features that are switched off.
    gradient = np.full((4, 5), 1e-3, np.float32)
    gradient[1], gradient[:, 2] = 0.0, 0.0
    (variable,) = variables_of((4, 5))
    optimizer = Adafactor(0.1, name="optimizer")
    optimizer.build([variable])

    @tf.function(jit_compile=jit_compile)
    def step():
        optimizer.apply([tf.constant(gradient)], [variable])

    for _ in range(3):
        step()
    is_still = gradient == 0.0
    np.testing.assert_array_equal(variable.numpy()[is_still], 1.0)
    assert (variable.numpy()[~is_still] < 0.9).all()


def test_it_is_the_one_of_keras_where_that_one_takes_the_same_step():
    # At a learning rate below one over the root of the step.
    random = np.random.default_rng(2)
    gradients = random.normal(size=(5, 6, 4)).astype("float32")
    results = []
    for optimizer in (
        Adafactor(0.05, name="optimizer"),
        keras.optimizers.Adafactor(0.05, relative_step=False),
    ):
        (variable,) = variables_of((6, 4))
        for gradient in gradients:
            optimizer.apply([tf.constant(gradient)], [variable])
        results.append(variable.numpy())
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_its_configuration_makes_the_same_optimizer():
    optimizer = Adafactor(0.05, weight_decay=0.25, name="optimizer")
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, Adafactor)
    assert again.get_config() == optimizer.get_config()
