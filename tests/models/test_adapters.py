"""Low-rank adapters: only factors are trained, and merged they are the adapted model."""

import functools

import numpy as np
import pytest

from tests.slow_case import slow_case
from tests.small_models import NUM_ROWS, ToyBatches, toy_tokens, toy_trainer
from txl_tf.models import create_model
from txl_tf.models.adapters import merged_weights
from txl_tf.models.sizes import num_adapter_parameters

ADAPTERS = {"adapter_rank": 2, "adapter_alpha": 3.0, "num_steps": 4}


def of_kind(state, kind):
    return {
        name.removeprefix(kind): array for name, array in state.items() if name.startswith(kind)
    }


@functools.cache
def source_weights():
    return toy_trainer().state.inference_weights()


def adapted(model=None, optimizer=None, **training):
    """A trainer with adapters before its first step."""
    trainer = toy_trainer(
        model=model,
        training={**ADAPTERS, **training},
        optimizer={"learning_rate": 3e-2, **(optimizer or {})},
    )
    if model is None:
        trainer.state.begin_from(source_weights())
    return trainer


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        (None, None),
        slow_case(
            {"num_layers": 2, "share_attention_biases": True},
            {"name": "adamw", "weight_decay": 0.1},
        ),
        slow_case({"pre_norm": True, "residual_gate": "gru", "dropout": 0.1}, {"name": "muon"}),
    ],
)
def test_only_the_factors_are_trained_and_stored(model, optimizer):
    trainer = adapted(model, optimizer)
    before, initial = trainer.state.frozen_weights(), of_kind(trainer.arrays(), "adapter/")
    count = sum(array.size for array in initial.values())
    assert count == num_adapter_parameters(trainer.experiment.model, 2)
    list(trainer.run())
    for path, array in trainer.state.frozen_weights().items():
        np.testing.assert_array_equal(array, before[path], err_msg=path)
    state = trainer.arrays()
    for name, factor in of_kind(state, "adapter/").items():
        assert not np.array_equal(factor, initial[name]), name
    assert not of_kind(state, "model/")
    slots = [name for name, array in of_kind(state, "optimizer/").items() if array.ndim]
    assert slots and all("lora_kernel" in name for name in slots)


def test_the_merged_model_is_first_the_source_and_then_the_adapted_model():
    trainer = adapted()
    source = trainer.state.inference_weights()
    for path, array in source_weights().items():
        np.testing.assert_array_equal(source[path], array, err_msg=path)
    list(trainer.run())
    assert trainer.state.inference_variables() is None
    model, weights = create_model(trainer.experiment.model), trainer.state.inference_weights()
    tokens = ToyBatches(toy_tokens(), NUM_ROWS).batch(1)["token_ids"]
    memory, log_probs = model.initial_memory(NUM_ROWS), []
    for arrays in (weights, source):
        model.set_weights([arrays[variable.path] for variable in model.weights])
        log_probs.append(np.asarray(model.log_probs(tokens, memory)[0]))
    merged, before = log_probs
    expected, _ = trainer.model.log_probs(tokens, memory)
    np.testing.assert_allclose(merged, expected, atol=1e-6, rtol=1e-6)
    assert np.abs(before - merged).max() > 1e-3


@pytest.mark.slow
def test_the_average_is_of_the_factors():
    trainer = adapted(average_weights_from_step=1)
    factors = [of_kind(trainer.arrays(), "adapter/") for _ in trainer.run()]
    averages = of_kind(trainer.arrays(), "average/")
    del averages["num_steps"]
    for name, average in averages.items():
        mean = np.mean([each[name] for each in factors], axis=0)
        np.testing.assert_allclose(average, mean, atol=1e-6, err_msg=name)
    expected = merged_weights(source_weights() | averages, ADAPTERS["adapter_alpha"])
    weights = trainer.state.inference_weights()
    assert all(np.array_equal(weights[path], array) for path, array in expected.items())
