import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.toy_batches import largest_relative_difference, strategy_of, toy_experiment
from tests.toy_trainers import toy_trainer
from txl_tf.layers.compiled_parts import compiled_part, compiling_parts
from txl_tf.training import trainer as module
from txl_tf.training.trainer import StepCompilation

DROPOUT = {"dropout": 0.3, "attention_dropout": 0.2}


@pytest.fixture
def in_parts(monkeypatch):
    """Every width counts as wide enough."""
    widths = dict.fromkeys(module._NARROWEST_IN_PARTS, 1)
    monkeypatch.setattr(module, "_NARROWEST_IN_PARTS", widths)


def experiment_of(width, jit_compile, policy="float32"):
    model = {"hidden_dim": width, "num_heads": 2, "head_dim": width // 2}
    return toy_experiment(
        model=model, training={"jit_compile": jit_compile, "dtype_policy": policy}
    )


@pytest.mark.parametrize(
    ("width", "jit_compile", "policy", "chosen"),
    [
        (64, None, "float32", StepCompilation.WHOLE),
        (128, None, "float32", StepCompilation.WHOLE),
        (256, None, "float32", StepCompilation.PARTS),
        (128, None, "mixed_bfloat16", StepCompilation.PARTS),
        (64, None, "mixed_bfloat16", StepCompilation.WHOLE),
        (512, True, "float32", StepCompilation.WHOLE),
        (512, False, "float32", StepCompilation.NOTHING),
        (8, False, "mixed_bfloat16", StepCompilation.NOTHING),
    ],
)
def test_the_width_decides_unless_the_setting_does(width, jit_compile, policy, chosen):
    experiment = experiment_of(width, jit_compile, policy)
    assert StepCompilation.choose(experiment, tf.distribute.get_strategy()) is chosen


def test_several_replicas_compile_nothing():
    experiment = experiment_of(256, None)
    assert StepCompilation.choose(experiment, strategy_of(2)) is StepCompilation.NOTHING


def test_a_part_is_the_function_itself_unless_parts_are_compiled():
    def double(tensor):
        return tensor * 2.0

    assert compiled_part(double) is double
    with compiling_parts():
        with compiling_parts(False):
            assert compiled_part(double) is double
        part = compiled_part(double)
    assert part is not double
    assert compiled_part(double) is double
    assert part(tf.constant(3.0)).numpy() == 6.0


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


@pytest.mark.slow
def test_parts_give_the_numbers_of_the_uncompiled_step(in_parts):
    """With the same masks of dropout: others would change the losses by far more."""
    model = {**DROPOUT, "pre_norm": True, "residual_gate": "gru"}
    model |= {"share_attention_biases": True}
    # After few steps: the step that Adam takes for a small gradient makes differences larger.
    training = {"num_steps": 4, "rematerialize": True, "average_weights_from_step": 2}
    training |= {"gradient_accumulation_steps": 2}
    parts = toy_trainer(model=model, training={**training, "jit_compile": None})
    plain = toy_trainer(model=model, training=training)
    for one, other in zip(parts.run(), plain.run(), strict=True):
        assert one.nats_per_token == pytest.approx(other.nats_per_token, rel=1e-5)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-5)
    assert largest_relative_difference(parts.arrays(), plain.arrays()) <= 1e-4


@pytest.mark.slow
def test_a_resumed_run_in_parts_is_the_unbroken_one_bit_for_bit(in_parts):
    sections = {"model": DROPOUT, "training": {"jit_compile": None, "num_steps": 6}}
    unbroken, resumed = toy_trainer(**sections), toy_trainer(**sections)
    reports = unbroken.run()
    for _ in range(3):
        next(reports)
    resumed.load_arrays(unbroken.arrays())
    losses = [report.nats_per_token for report in reports]
    assert [report.nats_per_token for report in resumed.run()] == losses
    assert largest_relative_difference(resumed.arrays(), unbroken.arrays()) == 0.0
