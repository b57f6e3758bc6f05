"""Base class of layers, with the initializers and projections that they share."""

import keras

from txl_tf.config.model import ModelConfig


class ConfiguredLayer(keras.layers.Layer):
    """Base class of layers that keep the arguments of their constructor as attributes.

    A subclass lists in `_arguments` the names of those that `keras.layers.Layer` does not have.
    """

    _arguments: tuple[str, ...] = ()

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        arguments = {name: serialize(getattr(self, name)) for name in self._arguments}
        return {**super().get_config(), **arguments}


def normal_unless(initializer, stddev=0.02):
    """Returns the initializer as an object, or a normal distribution if it is `None`."""
    if initializer is None:
        initializer = keras.initializers.RandomNormal(stddev=stddev)
    return keras.initializers.get(initializer)


def projection_of(layer, units, name, input_dim, use_bias=False):
    """Returns a built `Dense` with the initializer and the dtypes of the layer that contains it."""
    dense = keras.layers.Dense(
        units,
        use_bias=use_bias,
        kernel_initializer=layer.kernel_initializer.clone(),
        dtype=layer.dtype_policy,
        name=name,
    )
    dense.build((None, None, input_dim))
    return dense


def initializer_of(config: ModelConfig, stddev: float) -> keras.initializers.Initializer:
    """Returns a new initializer: uniform if the model is, or normal with `stddev`."""
    if config.initializer == "uniform":
        return keras.initializers.RandomUniform(-config.initializer_range, config.initializer_range)
    return keras.initializers.RandomNormal(stddev=stddev)
