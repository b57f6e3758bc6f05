"""How a training step is compiled: as a whole, in parts, or not at all."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.small_models import strategy_of, toy_experiment
from txl_tf.layers.compiled_parts import compiled_part, compiling_parts
from txl_tf.training.step_compilation import StepCompilation


@pytest.mark.parametrize(
    ("width", "jit_compile", "policy", "num_replicas", "compilation"),
    [
        (64, None, "float32", 1, StepCompilation.WHOLE),
        (128, None, "float32", 1, StepCompilation.WHOLE),
        (256, None, "float32", 1, StepCompilation.PARTS),
        (128, None, "mixed_bfloat16", 1, StepCompilation.PARTS),
        (64, None, "mixed_bfloat16", 1, StepCompilation.WHOLE),
        (512, True, "float32", 1, StepCompilation.WHOLE),
        (512, False, "float32", 1, StepCompilation.NOTHING),
        (8, False, "mixed_bfloat16", 1, StepCompilation.NOTHING),
        (256, None, "float32", 2, StepCompilation.NOTHING),
    ],
)
def test_replicas_settings_and_width_decide_what_is_compiled(
    width, jit_compile, policy, num_replicas, compilation
):
    model = {"hidden_dim": width, "num_heads": 2, "head_dim": width // 2}
    training = {"jit_compile": jit_compile, "dtype_policy": policy}
    experiment = toy_experiment(model=model, training=training)
    assert StepCompilation.choose(experiment, strategy_of(num_replicas)) is compilation


class Scale(keras.layers.Layer):
    traced = ()

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], name="scale")

    def multiply(self, tensor):
        self.traced.append(self)
        return tensor * self.scale


def test_a_part_is_compiled_once_for_layers_alike_and_reads_the_weights_of_each(monkeypatch):
    layers, traced = [Scale(), Scale(), Scale(trainable=False)], []
    monkeypatch.setattr(Scale, "traced", traced)
    for factor, layer in enumerate(layers, start=2):
        layer.build((2,))
        layer.scale.assign([factor, factor])

    @tf.function
    def multiplied(tensor):
        with compiling_parts(), tf.GradientTape() as tape:
            results = [compiled_part(layer.multiply, layer.weights)(tensor) for layer in layers]
        return results, tape.gradient(results[1], layers[1].scale.value)

    results, gradient = multiplied(tf.constant([1.0, 5.0]))
    np.testing.assert_array_equal(results, [[2, 10], [3, 15], [4, 20]])
    np.testing.assert_array_equal(gradient, [1, 5])
    assert traced == [layers[0], layers[2]]
    assert compiled_part(ops.abs) is ops.abs  # elsewhere
