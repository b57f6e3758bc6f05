"""What every layer must be able to do beside Keras' own test of a layer.

`check_layer` runs all checks on one layer class.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tests.reference import max_difference
from tests.toy_batches import strategy_of
from txl_tf import stateless_random


def drawn_seeds(monkeypatch):
    """Returns a list that gets the seeds of every mask that is drawn from now on."""
    seeds = []
    draw = stateless_random.random_bits

    def spy(row_seeds, sizes):
        seeds.append(tuple(ops.convert_to_numpy(row_seeds).ravel().tolist()))
        return draw(row_seeds, sizes)

    monkeypatch.setattr("txl_tf.stateless_random.random_bits", spy)
    return seeds


def random(*shape, seed=0):
    """Normal float32 numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def built(layer, width):
    """A layer with large random weights, for inputs of a width."""
    layer.build((None, None, width))
    randomize_weights(layer)
    return layer


def check_layer(layer_class, init_kwargs, inputs, batched=None, tolerance=1e-6):
    """Runs every check of this module; inputs that are not `batched` are constants of a model."""

    def make():
        return layer_class(**init_kwargs)

    check_fit_moves_every_weight(make(), inputs, batched or list(inputs)[:1])
    check_compiled_equals_eager(make(), inputs, tolerance)
    check_mirrored_strategy(make, inputs, tolerance)


def randomize_weights(layer, stddev=0.4, seed=7):
    """Sets all trainable weights to large random numbers, gains to some around 1.

    Initial weights hide faults: biases are 0, gains are 1, and scores of
    almost 0 make every attention uniform. Two layers of one shape get equal
    weights.
    """
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_variables:
        mean = 1.0 if weight.name == "gamma" else 0.0
        weight.assign(rng.normal(mean, stddev, size=weight.shape))


def model_of(layer, inputs, batched):
    """A functional model of one layer with an unknown batch size."""
    symbols = {
        name: keras.Input(inputs[name].shape[1:], dtype=inputs[name].dtype.name, name=name)
        for name in batched
    }
    constants = {
        name: ops.convert_to_tensor(array) for name, array in inputs.items() if name not in batched
    }
    return keras.Model(list(symbols.values()), layer(**symbols, **constants))


def check_fit_moves_every_weight(layer, inputs, batched):
    model = model_of(layer, inputs, batched)
    randomize_weights(layer)
    before = [ops.convert_to_numpy(weight) for weight in layer.trainable_variables]
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mean_squared_error")
    data = [inputs[name] for name in batched]
    targets = np.random.default_rng(3).normal(size=model(data).shape)
    model.fit(data, targets, batch_size=len(targets), epochs=1, verbose=0)
    for weight, old in zip(layer.trainable_variables, before, strict=True):
        assert max_difference(ops.convert_to_numpy(weight), old) > 1e-4, f"{weight.path} is dead"


def check_compiled_equals_eager(layer, inputs, tolerance):
    tensors = {name: tf.constant(array) for name, array in inputs.items()}
    layer(**tensors)  # builds it
    randomize_weights(layer)
    eager = layer(**tensors)
    compiled = tf.function(lambda **each: layer(**each), jit_compile=True)
    assert max_difference(compiled(**tensors), eager) <= tolerance


def check_mirrored_strategy(make, inputs, tolerance):
    strategy = strategy_of(2)
    tensors = {name: tf.constant(array) for name, array in inputs.items()}
    with strategy.scope():
        layer = make()
        layer(**tensors)
    randomize_weights(layer)
    expected = layer(**tensors)
    for weight in layer.trainable_variables:
        assert isinstance(weight.value, tf.distribute.DistributedValues), weight.path
    results = strategy.run(tf.function(lambda **each: layer(**each)), kwargs=tensors)
    for result in strategy.experimental_local_results(results):
        assert max_difference(result, expected) <= tolerance
