"""Adafactor, which keeps a row and a column for a matrix."""

import keras
from keras import ops

_DECAY_EXPONENT = -0.8
_EPSILON_OF_SQUARES = 1e-30
_EPSILON_OF_SCALE = 1e-3
_MAX_UPDATE = 1.0


@keras.saving.register_keras_serializable(package="txl_tf")
class Adafactor(keras.optimizers.Optimizer):
    """Adafactor with the proposed hyperparameters and a given step size.

    The step of a variable is the learning rate times the root mean square of
    the variable, or times 0.001 if that is larger: the learning rate is a
    relative one, about 0.01. There is no momentum. Of variables with two axes
    or more, the last two are factored.

    `keras.optimizers.Adafactor` is not used: it also keeps an array of the
    size of each matrix, which takes the memory that Adafactor is to save;
    its variables share names, so they cannot be stored by name; it lowers the
    learning rate to one over the root of the step on its own; and where a row
    and a column of a gradient are both zero it divides zero by zero.

    Args:
        learning_rate: float or `keras.optimizers.schedules.LearningRateSchedule`.
        **kwargs: arguments of `keras.optimizers.Optimizer`.

    References:
     - [Shazeer and Stern, 2018](https://arxiv.org/abs/1804.04235), Algorithms 4 and 5
    """

    def __init__(self, learning_rate=0.01, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)

    def build(self, variables):
        """Creates the means of the squares: of rows and columns, or of each value.

        Args:
            variables: list of the variables to train.
        """
        if self.built:
            return
        super().build(variables)
        self._means = [self._create_means(variable) for variable in variables]

    def _create_means(self, variable):
        shape = tuple(variable.shape)
        shapes = {"squares": shape}
        if len(shape) >= 2:
            shapes = {"rows": shape[:-1], "columns": (*shape[:-2], shape[-1])}
        prefix = variable.path.replace("/", "_")
        return tuple(
            self.add_variable(shape=each, dtype=variable.dtype, name=f"{prefix}_{name}")
            for name, each in shapes.items()
        )

    def update_step(self, gradient, variable, learning_rate):
        """Changes one variable and its means."""
        dtype = variable.dtype
        gradient = ops.cast(gradient, dtype)
        step = ops.cast(self.iterations + 1, dtype)
        share = ops.power(step, _DECAY_EXPONENT)
        squares = ops.square(gradient) + _EPSILON_OF_SQUARES
        means = self._means[self._get_variable_index(variable)]
        if len(means) == 1:
            (mean,) = means
            self.assign(mean, mean + share * (squares - mean))
            update = gradient * ops.rsqrt(mean)
        else:
            rows, columns = means
            self.assign(rows, rows + share * (ops.mean(squares, axis=-1) - rows))
            self.assign(columns, columns + share * (ops.mean(squares, axis=-2) - columns))
            # One root after the other: the product of two small means would be zero.
            of_row = ops.rsqrt(rows / ops.mean(rows, axis=-1, keepdims=True))
            update = gradient * ops.expand_dims(of_row, -1)
            update = update * ops.expand_dims(ops.rsqrt(columns), -2)
        update = update / ops.maximum(_root_mean_square(update) / _MAX_UPDATE, 1.0)
        size = ops.maximum(_root_mean_square(variable), _EPSILON_OF_SCALE)
        self.assign_sub(variable, ops.cast(learning_rate, dtype) * size * update)


def _root_mean_square(tensor):
    return ops.sqrt(ops.mean(ops.square(tensor)))
